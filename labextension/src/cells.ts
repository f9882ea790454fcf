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

/** The part of JupyterLab's model of a cell that is used here; only cells of code have outputs. */
interface ICell {
  id: string;
  executionCount?: number | null;
  outputs?: {
    length: number;
    get(index: number): { type: string; toJSON(): { ename?: unknown } };
  };
}

/**
 * Follows the cells of one notebook: those that it sends to its kernel, and
 * those whose wait was cancelled. The outputs in the notebook tell the latter,
 * so they are known after a reload of the page and a restart of the kernel too.
 */
export class Cells {
  constructor(panel: INotebookPanel, context: DocumentRegistry.Context) {
    this._panel = panel;
    const { sessionContext } = context;
    this._model = context.model as unknown as { cells: Iterable<ICell> };
    context.model.contentChanged.connect(this._find, this);
    void context.ready.then(() => panel.isDisposed || this._find());
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
   * The index of the cell whose wait was cancelled last, of those that were
   * neither run again nor cleared nor removed; -1 where there is none.
   */
  get cancelled(): number {
    const { widgets } = this._panel.content;
    return widgets.findIndex(({ model }) => model.id === this._cancelled[0]);
  }

  /** Cells that are found together are ordered by their numbers of execution. */
  private _find(): void {
    const found = [...this._model.cells]
      .filter(wasCancelled)
      .sort((a, b) => (b.executionCount ?? 0) - (a.executionCount ?? 0))
      .map(({ id }) => id);
    const before = this._cancelled;
    const known = before.filter(id => found.includes(id));
    this._cancelled = [...found.filter(id => !known.includes(id)), ...known];
    if (this._cancelled.join() !== before.join()) {
      this._changed.emit();
    }
  }

  private _follow(session: Session.ISessionConnection | null): void {
    this._sent.clear();
    session?.anyMessage.connect(this._onMessage, this);
  }

  private _onMessage(_: unknown, { msg }: Kernel.IAnyMessageArgs): void {
    if (msg.header.msg_type === 'execute_request') {
      this._begins(msg.header.msg_id, msg.metadata.cellId);
    } else if (KernelMessage.isExecuteReplyMsg(msg)) {
      this._sent.delete((msg.parent_header as KernelMessage.IHeader).msg_id);
      this._changed.emit();
    }
  }

  /** Requests that belong to no cell, such as ours, have no id of one. */
  private _begins(request: string, cell: unknown): void {
    if (typeof cell !== 'string') {
      return;
    }
    this._sent.add(request);
    this._changed.emit();
  }

  private _cancelled: string[] = []; // identifiers, the newest first
  private _changed = new Signal<this, void>(this);
  private _model: { cells: Iterable<ICell> };
  private _panel: INotebookPanel;
  private _sent = new Set<string>();
}

/** Whether the newest error among the outputs of the cell is that of a cancelled wait. */
function wasCancelled({ outputs }: ICell): boolean {
  for (let index = (outputs?.length ?? 0) - 1; index >= 0; index--) {
    const output = outputs!.get(index);
    if (output.type === 'error') {
      return output.toJSON().ename === CANCELLED;
    }
  }
  return false;
}
