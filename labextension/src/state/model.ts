/** The newest state and its viewer, over one WebSocket for the whole page. */

import { ISignal, Signal } from '@lumino/signaling';
import { DISCONNECTED, State } from './notebook';
import { LastSnapshot } from './last_snapshot';
import { IError, ISnapshot, IViewer } from './snapshot';

export const FIRST_RETRY_MS = 500;
export const LAST_RETRY_MS = 30_000;

/**
 * Retries with back-off; stands by, keeping what it knew, while the page is
 * hidden.
 */
export class GpuShareModel {
  constructor(connect: () => WebSocket, page: Document = document) {
    this._connect = connect;
    this._page = page;
    page.addEventListener('visibilitychange', this._onVisibility);
    this._onVisibility();
  }

  /** The present state, by the page's clock. */
  get state(): State {
    return this._last.state(performance.now());
  }

  /**
   * The last complete snapshot, though it may not be valid now; null before
   * there is one.
   */
  get known(): ISnapshot | null {
    return this._last.snapshot;
  }

  /** The last snapshot with its age, for a view that judges it at times of its own. */
  get last(): LastSnapshot {
    return this._last;
  }

  /** The viewer and their permissions; null before the server has sent them. */
  get viewer(): IViewer | null {
    return this._viewer;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  dispose(): void {
    this._page.removeEventListener('visibilitychange', this._onVisibility);
    this._close();
    Signal.clearData(this);
  }

  private _onVisibility = (): void => {
    if (this._page.hidden) {
      this._close();
    } else if (this._socket === null) {
      this._open();
    }
  };

  private _open(): void {
    clearTimeout(this._timer);
    const socket = this._connect();
    this._socket = socket;
    socket.onmessage = event => {
      this._retry = FIRST_RETRY_MS;
      this._take(JSON.parse(event.data));
    };
    socket.onclose = () => this._lost();
  }

  /** The viewer arrives before the state that belongs to it. */
  private _take(message: ISnapshot | IError | IViewer): void {
    if (message.type === 'Viewer') {
      this._viewer = message;
    } else {
      this._tell(message);
    }
  }

  private _lost(): void {
    this._socket = null;
    this._tell({ type: 'Error', code: DISCONNECTED, message: '' });
    this._timer = setTimeout(() => this._open(), this._retry);
    this._retry = Math.min(2 * this._retry, LAST_RETRY_MS);
  }

  private _close(): void {
    clearTimeout(this._timer);
    if (this._socket !== null) {
      this._socket.onclose = this._socket.onmessage = null;
      this._socket.close();
      this._socket = null;
      this._stoodBySince ??= performance.now();
    }
  }

  private _tell(state: State): void {
    if (this._stoodBySince !== null) {
      // the last state may no longer hold after the time that was missed
      this._last.take(null, this._stoodBySince);
      this._stoodBySince = null;
    }
    this._last.take(state, performance.now());
    this._changed.emit();
  }

  private _changed = new Signal<this, void>(this);
  private _connect: () => WebSocket;
  private _page: Document;
  private _last = new LastSnapshot();
  private _retry = FIRST_RETRY_MS;
  private _socket: WebSocket | null = null;
  private _stoodBySince: number | null = null;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _viewer: IViewer | null = null;
}
