/** The cells of a notebook that run, and those whose wait was cancelled. */

import { DocumentRegistry } from '@jupyterlab/docregistry';
import { Kernel, KernelMessage, Session } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

/**
 * The kernel's name for the error with which a cancelled wait ends its cell.
 */
const CANCELLED = 'Cancelled';

/** The part of JupyterLab's notebook panel that is used here. */
export interface INotebookPanel extends Widget {
  content: Widget & {
    activeCellIndex: number;
    deselectAll(): void;
    widgets: readonly { model: { id: string } }[];
  };
}

/** Follows the cells that one notebook sends to its kernel. */
export class Cells {
  constructor(panel: INotebookPanel, context: DocumentRegistry.Context) {
    this._panel = panel;
    const { sessionContext } = context;
    sessionContext.sessionChanged.connect((_, { oldValue, newValue }) => {
      oldValue?.anyMessage.disconnect(this._onMessage, this);
      this._follow(newValue ?? null);
    });
    sessionContext.statusChanged.connect((_, status) => {
      // messages sent to the kernel before are not answered any more
      if (status === 'restarting' || status === 'autorestarting') {
        this._sent.clear();
        this._changed.emit();
      }
    });
    this._follow(sessionContext.session);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get panel(): INotebookPanel {
    return this._panel;
  }

  /**
   * Whether a cell runs, or is queued to run; the kernel's own status follows
   * other requests too.
   */
  get isRunning(): boolean {
    return this._sent.size > 0;
  }

  /**
   * The index of the cell whose wait was cancelled last, until it is run again
   * or removed; -1 where there is none.
   */
  get cancelled(): number {
    const { widgets } = this._panel.content;
    return widgets.findIndex(({ model }) => model.id === this._cell);
  }

  private _follow(session: Session.ISessionConnection | null): void {
    this._sent.clear();
    session?.anyMessage.connect(this._onMessage, this);
  }

  private _onMessage(_: unknown, { msg }: Kernel.IAnyMessageArgs): void {
    if (msg.header.msg_type === 'execute_request') {
      this._begins(msg.header.msg_id, msg.metadata.cellId);
    } else if (KernelMessage.isExecuteReplyMsg(msg)) {
      this._ended(msg);
    }
  }

  /** Requests that belong to no cell, such as ours, have no id of one. */
  private _begins(request: string, cell: unknown): void {
    if (typeof cell !== 'string') {
      return;
    }
    this._sent.set(request, cell);
    this._cell = cell === this._cell ? null : this._cell;
    this._changed.emit();
  }

  private _ended(reply: KernelMessage.IExecuteReplyMsg): void {
    const request = (reply.parent_header as KernelMessage.IHeader).msg_id;
    const cell = this._sent.get(request);
    this._sent.delete(request);
    const { content } = reply;
    if (cell && content.status === 'error' && content.ename === CANCELLED) {
      this._cell = cell;
    }
    this._changed.emit();
  }

  private _cell: string | null = null;
  private _changed = new Signal<this, void>(this);
  private _panel: INotebookPanel;
  private _sent = new Map<string, string>();
}
