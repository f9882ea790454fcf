/** The open notebooks: their kernels' sessions, and sharing on and off in the one in front. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { DocumentRegistry } from '@jupyterlab/docregistry';
import { Kernel } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { Cells, INotebookPanel } from './cells';
import { ITranslate } from '../state/format';
import { Notebook, ofKernel } from '../state/notebook';
import { GpuShareModel } from '../state/model';
import { Paths } from '../state/names';
import { isFree } from '../state/queue';
import { Sharing } from './sharing';

const RUN_CELL = 'notebook:run-cell';
const FRONT_MS = 5000; // time for a notebook to come to the front
const FREE_MS = 1000; // time for its kernel to become idle

/** An open notebook. */
interface IOpened {
  context: DocumentRegistry.Context;
  cells: Cells;
  sharing: Sharing;
}

/** Follows the open notebooks, the one in front, and its session. */
export class FrontNotebook {
  constructor(model: GpuShareModel, app: JupyterFrontEnd, trans: ITranslate) {
    this._model = model;
    this._trans = trans;
    this._app = app;
    app.docRegistry.addWidgetExtension('Notebook', {
      createNew: (panel, context) =>
        this._add(panel as unknown as INotebookPanel, context)
    });
    model.changed.connect(this._onChange, this);
    app.shell.currentChanged?.connect(this._onChange, this);
    app.serviceManager.sessions.runningChanged.connect(this._onChange, this);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The notebook in front, if there is one. */
  get document(): DocumentRegistry.Context | null {
    return this._front?.context ?? null;
  }

  /**
   * The session of the notebook in front, as last seen; null where it does not
   * share, or where this is not known.
   */
  get session(): Notebook | null {
    const front = this._front;
    return (front && this._sessionOf(front)) ?? null;
  }

  /**
   * Whether it is known that `session` is the one of the notebook in front: a
   * kernel that this page has reached began to share before it or tells of it.
   */
  get isKnown(): boolean {
    if (this._front === null || this.session !== null) {
      return true;
    }
    if (this._sessionOf(this._front) === undefined) {
      return false; // two could be the one
    }
    const { isReady, session } = this._front.context.sessionContext;
    const kernel = session?.kernel ?? null;
    return (
      this._model.known !== null &&
      isReady &&
      (kernel === null || kernel.connectionStatus === 'connected')
    );
  }

  /** Whether sharing can be switched here: in a kernel of Python. */
  get canShare(): boolean {
    const language = this.document?.model.defaultKernelLanguage || 'python';
    const kernel = this._front?.sharing.kernel ?? null;
    return kernel !== null && language === 'python';
  }

  /**
   * The state of sharing that was asked for, until the kernel has processed it;
   * null where none is.
   */
  get wanted(): boolean | null {
    return this._front?.sharing.wanted ?? null;
  }

  /** Whether a cell runs there, for which the request waits. */
  get isBusy(): boolean {
    return this._front?.cells.isRunning ?? false;
  }

  /**
   * Switch sharing in the kernel, after the cells that run there. Throws with
   * the kernel's sentence.
   */
  async share(on: boolean): Promise<void> {
    await this._front?.sharing.share(on);
  }

  /** Paths by the process of the kernel, of all notebooks of this server. */
  get paths(): Paths {
    const kernels = this._model.viewer?.kernels ?? {};
    const paths = new Map<number, string>();
    for (const {
      path,
      kernel
    } of this._app.serviceManager.sessions.running()) {
      if (kernel && kernels[kernel.id] !== undefined) {
        paths.set(kernels[kernel.id], path);
      }
    }
    return paths;
  }

  /**
   * How to run the cell again whose wait was cancelled; null where no open
   * notebook has one, or where its kernel has something to do.
   */
  again(notebook: Notebook): (() => Promise<void>) | null {
    const found = [...this._opened.values()].find(
      opened =>
        this._sessionOf(opened)?.id === notebook.id && this._canRunAgain(opened)
    );
    return found ? () => this._runAgain(found) : null;
  }

  /**
   * The saved output tells of the cancelled wait until the next run prints
   * something, so it does not show whether the cell was run again.
   */
  private _canRunAgain(opened: IOpened): boolean {
    const { cells, sharing } = opened;
    const session = this._sessionOf(opened) ?? null;
    return (
      cells.cancelled >= 0 &&
      !cells.isRunning &&
      !this._again.has(cells) &&
      sharing.kernel?.status === 'idle' &&
      session !== null &&
      isFree(session)
    );
  }

  /**
   * Uses the front end's own command, which runs the active cell of the
   * notebook in front.
   */
  private async _runAgain(opened: IOpened): Promise<void> {
    const { cells } = opened;
    const { panel } = cells;
    this._app.shell.activateById(panel.id);
    await this._comesToFront(panel);
    await this._getsFree(opened);
    // a second press, or another page, may have come first
    if (!this._canRunAgain(opened)) {
      throw new Error(`${panel.title.label} runs or waits already.`);
    }
    panel.content.deselectAll();
    panel.content.activeCellIndex = cells.cancelled;
    this._again.add(cells);
    const ended = () => {
      this._again.delete(cells);
      this._onChange();
    };
    void this._app.commands.execute(RUN_CELL).then(ended, ended);
    this._onChange();
  }

  /** A kernel that answers a page is busy for a moment, too. */
  private async _getsFree(opened: IOpened): Promise<void> {
    const { cells } = opened;
    const latest = performance.now() + FREE_MS;
    while (
      !this._canRunAgain(opened) &&
      !cells.isRunning &&
      !this._again.has(cells) &&
      performance.now() < latest
    ) {
      await new Promise(resolve => setTimeout(resolve, 20));
    }
  }

  private async _comesToFront(panel: INotebookPanel): Promise<void> {
    const latest = performance.now() + FRONT_MS;
    while (!panel.node.contains(document.activeElement)) {
      if (performance.now() > latest) {
        throw new Error(`${panel.title.label} does not come to the front.`);
      }
      await new Promise(resolve => setTimeout(resolve, 20));
    }
  }

  private get _front(): IOpened | null {
    const widget = this._app.shell.currentWidget;
    return (widget && this._opened.get(widget)) ?? null;
  }

  private _sessionOf({ context }: IOpened): Notebook | null | undefined {
    const { known, viewer } = this._model;
    const { session } = context.sessionContext;
    if (!session?.kernel) {
      return null;
    }
    const running = [...this._app.serviceManager.sessions.running()];
    const paths = running.map(({ path }) => path);
    return ofKernel(known, viewer, session.kernel.id, session.path, paths);
  }

  private _add(panel: INotebookPanel, context: DocumentRegistry.Context): void {
    const kernel = (): Kernel.IKernelConnection | null =>
      context.sessionContext.session?.kernel ?? null;
    const cells = new Cells(panel, context, this._trans);
    const sharing = new Sharing(kernel);
    this._opened.set(panel, { context, cells, sharing });
    panel.disposed.connect(() => this._opened.delete(panel));
    const { sessionContext } = context;
    sessionContext.kernelChanged.connect(this._onChange, this);
    sessionContext.statusChanged.connect(this._onChange, this);
    sessionContext.connectionStatusChanged.connect(this._onChange, this);
    void sessionContext.ready.then(() => this._onChange());
    cells.changed.connect(this._onChange, this);
    sharing.changed.connect(this._onChange, this);
    this._onChange();
  }

  private _onChange(): void {
    this._changed.emit();
  }

  private _again = new Set<Cells>(); // whose cancelled cell runs again
  private _app: JupyterFrontEnd;
  private _changed = new Signal<this, void>(this);
  private _model: GpuShareModel;
  private _opened = new Map<Widget, IOpened>();
  private _trans: ITranslate;
}
