/** The jobs of the viewer on a cluster, as the server was last asked. */

import { ISignal, Signal } from '@lumino/signaling';
import { request, Send } from '../actions';
import { IJobs, isPresent, logName } from '../view/jobs';
import { IClusterView, IJobLog, IJobView } from '../state/snapshot';

export const ACTIVE_MS = 2000; // between two looks while a job is not over
export const QUIET_MS = 10_000;

/**
 * Asks the server only while it is ticked, which the visible panel does; so a
 * hidden page keeps no service of jobs alive.
 */
export class JobsModel implements IJobs {
  constructor(send: Send) {
    this._send = send;
  }

  cluster: IClusterView | null = null;
  logs: ReadonlyMap<string, IJobLog> = new Map();
  trouble = '';

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Look if it is time to; `isOpen` says which logs are shown. */
  tick(now: number, isOpen: (name: string) => boolean): void {
    const shown = this._jobs.filter(({ id }) => isOpen(logName(id)));
    const isDue =
      now >= this._next || shown.some(({ id }) => !this.logs.has(id));
    if (isDue && !this._looking) {
      this._next = Infinity; // until this look has ended
      void this._look(shown).then(() => {
        this._next = now + (this._jobs.some(isPresent) ? ACTIVE_MS : QUIET_MS);
      });
    }
  }

  /** Cancel a job; a refusal is an Error with one sentence. */
  async cancel(id: string): Promise<void> {
    const body = JSON.stringify({ ask: 'cancel' });
    const init = { method: 'POST', body };
    await request(this._send, ['jobs', id, 'asks'], init);
    this._next = -Infinity;
  }

  private get _jobs(): IJobView[] {
    return this.cluster?.jobs ?? [];
  }

  private async _look(shown: IJobView[]): Promise<void> {
    this._looking = true;
    try {
      this.cluster = await request(this._send, ['jobs'], {}, '?all=true');
      this.logs = new Map(
        await Promise.all(
          shown.map(async ({ id }): Promise<[string, IJobLog]> => [
            id,
            await this._logOf(id)
          ])
        )
      );
      this.trouble = '';
    } catch (error) {
      this.trouble = (error as Error).message;
    }
    this._looking = false;
    this._changed.emit();
  }

  /** One that cannot be read says why, and the others are shown. */
  private async _logOf(id: string): Promise<IJobLog> {
    try {
      return await request(this._send, ['jobs', id, 'log']);
    } catch (error) {
      return { text: (error as Error).message, is_cut: false };
    }
  }

  private _changed = new Signal<this, void>(this);
  private _looking = false;
  private _next = -Infinity;
  private _send: Send;
}
