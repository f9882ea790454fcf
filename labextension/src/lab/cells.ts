/**
 * The cells of a notebook that run, and those whose wait was cancelled; the lines about waits of
 * cells that do not run any more.
 */

import { ISessionContext } from '@jupyterlab/apputils';
import { DocumentRegistry } from '@jupyterlab/docregistry';
import { Kernel, KernelMessage, Session } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { ITranslate } from '../state/format';

/**
 * The kernel's name for the error with which a cancelled wait ends its cell.
 */
const CANCELLED = 'Cancelled';
/**
 * The key in the metadata of a kernel's output that is true only while its cell
 * runs.
 */
const WHILE_IT_RUNS = 'jupyter_gpushare';

/** The part of JupyterLab's notebook panel that is used here. */
export interface INotebookPanel extends Widget {
  content: Widget & {
    activeCellIndex: number;
    deselectAll(): void;
    widgets: readonly { model: { id: string } }[];
  };
}

/** An output as the notebook's file has it. */
interface IOutput {
  ename?: unknown;
  metadata?: Record<string, unknown>;
  [key: string]: unknown;
}

/** The part of JupyterLab's model of a cell that is used here; only cells of code have outputs. */
interface ICell {
  id: string;
  executionCount?: number | null;
  outputs?: {
    length: number;
    get(index: number): { type: string; toJSON(): IOutput };
    set(index: number, output: IOutput): void;
  };
}

/**
 * Follows the cells of one notebook: those that it sends to its kernel, and
 * those whose wait was cancelled. The notebook's outputs tell which were
 * cancelled, so this is known even after a reload of the page or a restart of
 * the kernel.
 */
export class Cells {
  constructor(
    panel: INotebookPanel,
    context: DocumentRegistry.Context,
    trans: ITranslate
  ) {
    this._panel = panel;
    this._trans = trans;
    const { sessionContext } = context;
    this._model = context.model as unknown as { cells: Iterable<ICell> };
    context.model.contentChanged.connect(this._find, this);
    sessionContext.sessionChanged.connect((_, { oldValue, newValue }) => {
      oldValue?.anyMessage.disconnect(this._onMessage, this);
      this._follow(newValue ?? null);
    });
    sessionContext.statusChanged.connect((_, status) => {
      // the kernel will not answer the messages that were sent before
      if (status.endsWith('restarting') || status === 'dead') {
        this._endAll();
      }
    });
    sessionContext.kernelChanged.connect((_, { oldValue }) => {
      if (oldValue) {
        this._endAll(); // it was shut down, or the notebook has another one
      }
    });
    this._follow(sessionContext.session);
    // if it is ready, another view has done this, and `info` may be older than the running cell
    if (!sessionContext.isReady) {
      void this._endSavedLines(sessionContext);
    }
    this._find();
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
   * The index of the last cell whose wait was cancelled and which was not run
   * again, cleared or removed; -1 if there is none.
   */
  get cancelled(): number {
    const { widgets } = this._panel.content;
    return widgets.findIndex(({ model }) => model.id === this._cancelled[0]);
  }

  /** New ones come first, sorted by their execution counts. */
  private _find(): void {
    const before = this._cancelled;
    this._cancelled = [...this._model.cells]
      .filter(wasCancelled)
      .sort(
        (a, b) =>
          before.indexOf(a.id) - before.indexOf(b.id) ||
          b.executionCount! - a.executionCount!
      )
      .map(({ id }) => id);
    if (`${this._cancelled}` !== `${before}`) {
      this._changed.emit();
    }
  }

  /** A reloaded page learns only from the kernel whether cells run there. */
  private async _endSavedLines(context: ISessionContext): Promise<void> {
    await context.ready; // until then it has no session
    await context.session?.kernel?.info; // a busy kernel answers once it is free
    this._endLines();
  }

  private _endAll(): void {
    this._sent.clear();
    this._endLines();
    this._changed.emit();
  }

  /** Ends the lines of all cells except those that this page has sent. */
  private _endLines(): void {
    const sent = new Set(this._sent.values());
    for (const { id, outputs } of this._model.cells) {
      for (let index = sent.has(id) ? 0 : (outputs?.length ?? 0); index--;) {
        const output = outputs!.get(index).toJSON();
        if (output.metadata?.[WHILE_IT_RUNS]) {
          const text = this._trans.__('This cell does not run any more.');
          const data = { 'text/plain': text };
          outputs!.set(index, { ...output, data, metadata: {} });
        }
      }
    }
  }

  private _follow(session: Session.ISessionConnection | null): void {
    this._sent.clear();
    session?.anyMessage.connect(this._onMessage, this);
  }

  private _onMessage(_: unknown, { msg }: Kernel.IAnyMessageArgs): void {
    if (KernelMessage.isExecuteReplyMsg(msg)) {
      this._sent.delete((msg.parent_header as KernelMessage.IHeader).msg_id);
    } else if (
      msg.header.msg_type === 'execute_request' &&
      typeof msg.metadata.cellId === 'string' // requests of no cell, such as ours, have none
    ) {
      this._sent.set(msg.header.msg_id, msg.metadata.cellId);
    } else {
      return;
    }
    this._changed.emit();
  }

  private _cancelled: string[] = []; // identifiers, the newest first
  private _changed = new Signal<this, void>(this);
  private _model: { cells: Iterable<ICell> };
  private _panel: INotebookPanel;
  private _sent = new Map<string, string>(); // cells, by their requests
  private _trans: ITranslate;
}

/** Whether the newest error among the outputs of the cell is that of a cancelled wait. */
function wasCancelled({ outputs }: ICell): boolean {
  for (let index = outputs?.length ?? 0; index--;) {
    const output = outputs!.get(index);
    if (output.type === 'error') {
      return output.toJSON().ename === CANCELLED;
    }
  }
  return false;
}
