/**
 * Sharing on and off in one kernel, which processes it when the running cell
 * has ended.
 */

import { Kernel, KernelMessage } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';

// what sharing asks of a kernel; the kernel prints nothing where all is well
const ON = `import sys
if 'jupyter_gpushare' not in get_ipython().extension_manager.loaded:
    get_ipython().run_line_magic('load_ext', 'jupyter_gpushare')
get_ipython().run_line_magic('gpushare', 'on')`;
const OFF = "get_ipython().run_line_magic('gpushare', 'off')";
const RETRY_MS = 100;

export class Sharing {
  constructor(kernel: () => Kernel.IKernelConnection | null) {
    this._kernel = kernel;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get kernel(): Kernel.IKernelConnection | null {
    return this._kernel();
  }

  /**
   * The state that the kernel has been asked for and has not reached; null
   * where there is none.
   */
  get wanted(): boolean | null {
    return this._wanted;
  }

  /**
   * Returns when it is done; further requests meanwhile are carried out too.
   * Throws the kernel's sentence.
   */
  async share(on: boolean): Promise<void> {
    const isAsking = this._wanted !== null;
    this._set(on);
    if (isAsking) {
      return;
    }
    try {
      for (let done = !on; done !== this._wanted;) {
        const next = this._wanted!;
        await this._run(next ? ON : OFF);
        done = next;
      }
    } finally {
      this._set(null);
    }
  }

  /**
   * Asks once more, since a cell that fails or is interrupted also drops the
   * requests that wait behind it.
   */
  private async _run(code: string): Promise<void> {
    for (;;) {
      const content = await this._reply(code);
      if (content.status === 'error') {
        throw new Error(content.evalue || content.ename);
      }
      if (content.status === 'ok') {
        return;
      }
      await new Promise(resolve => setTimeout(resolve, RETRY_MS));
    }
  }

  private async _reply(
    code: string
  ): Promise<KernelMessage.IExecuteReplyMsg['content']> {
    const kernel = this._kernel();
    if (kernel === null) {
      throw new Error('The notebook has no kernel any more.');
    }
    const request = { code, store_history: false, stop_on_error: false };
    return (await kernel.requestExecute(request).done).content;
  }

  private _set(wanted: boolean | null): void {
    this._wanted = wanted;
    this._changed.emit();
  }

  private _changed = new Signal<this, void>(this);
  private _kernel: () => Kernel.IKernelConnection | null;
  private _wanted: boolean | null = null;
}
