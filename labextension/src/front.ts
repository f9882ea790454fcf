/** The notebook in front: its kernel's session, and sharing on and off in it. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { DocumentRegistry } from '@jupyterlab/docregistry';
import { Kernel } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { Notebook, ofKernel } from './format';
import { GpuShareModel } from './model';

// what sharing wants of a kernel; it says nothing where all is well
const ON = `import sys
if 'jupyter_gpushare' not in get_ipython().extension_manager.loaded:
    get_ipython().run_line_magic('load_ext', 'jupyter_gpushare')
get_ipython().run_line_magic('gpushare', 'on')`;
const OFF = "get_ipython().run_line_magic('gpushare', 'off')";

/** Follows the notebook in front and its session. */
export class FrontNotebook {
  constructor(model: GpuShareModel, app: JupyterFrontEnd) {
    this._model = model;
    this._shell = app.shell;
    app.docRegistry.addWidgetExtension('Notebook', {
      createNew: (panel, context) => this._add(panel, context)
    });
    model.changed.connect(this._onChange, this);
    app.shell.currentChanged?.connect(this._onChange, this);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** What is in front, if it is a notebook. */
  get document(): DocumentRegistry.Context | null {
    const widget = this._shell.currentWidget;
    return (widget && this._notebooks.get(widget)) ?? null;
  }

  /** The session of the notebook in front; null where it does not share. */
  get session(): Notebook | null {
    const { state, viewer } = this._model;
    const kernel = this._kernel;
    return kernel
      ? ofKernel(state, viewer, kernel.id, this.document!.path)
      : null;
  }

  /** Whether sharing can be switched here: in a kernel of Python. */
  get canShare(): boolean {
    const language = this.document?.model.defaultKernelLanguage || 'python';
    return this._kernel !== null && language === 'python';
  }

  /** Switch sharing in the kernel, after what runs there. Throws with the kernel's sentence. */
  async share(on: boolean): Promise<void> {
    if (this._kernel) {
      await run(this._kernel, on ? ON : OFF);
    }
  }

  private _add(panel: Widget, context: DocumentRegistry.Context): void {
    this._notebooks.set(panel, context);
    context.sessionContext.kernelChanged.connect(this._onChange, this);
    this._onChange();
  }

  private get _kernel(): Kernel.IKernelConnection | null {
    return this.document?.sessionContext.session?.kernel ?? null;
  }

  private _onChange(): void {
    this._changed.emit();
  }

  private _changed = new Signal<this, void>(this);
  private _model: GpuShareModel;
  private _notebooks = new WeakMap<Widget, DocumentRegistry.Context>();
  private _shell: JupyterFrontEnd.IShell;
}

async function run(
  kernel: Kernel.IKernelConnection,
  code: string
): Promise<void> {
  const future = kernel.requestExecute({ code, store_history: false });
  const { content } = await future.done;
  if (content.status === 'error') {
    throw new Error(content.evalue || content.ename);
  }
}
