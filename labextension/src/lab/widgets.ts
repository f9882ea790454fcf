/** The two places in JupyterLab where the model is seen. */

import { LabIcon } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { ITranslate } from '../state/format';
import { Notebook, stateOf } from '../state/notebook';
import { inThreeWords, summary } from '../state/sentences';
import { FrontNotebook } from './front';
import { JobsModel } from './jobs_model';
import { GpuShareModel } from '../state/model';
import { IActions } from '../view/view_model';
import { GpuShareView } from '../view/view';

export const lanesIcon = new LabIcon({
  name: 'jupyter-gpushare:lanes',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">' +
    '<g class="jp-icon3" fill="#616161">' +
    '<rect x="3" y="4" width="12" height="4" rx="2"/>' +
    '<rect x="8" y="10" width="13" height="4" rx="2"/>' +
    '<rect x="3" y="16" width="8" height="4" rx="2"/>' +
    '</g></svg>'
});

/** The side panel; it is drawn, and its clocks move, only while it is seen. */
export class GpuSharePanel extends Widget {
  constructor(
    model: GpuShareModel,
    front: FrontNotebook,
    actions: IActions,
    jobs: JobsModel,
    trans: ITranslate
  ) {
    super();
    this.id = 'jupyter-gpushare-panel';
    this.title.icon = lanesIcon;
    this.title.caption = trans.__('GPU sharing');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', this.title.caption);
    this.node.tabIndex = 0; // so that arrows scroll it
    // here, since it is needed before the style sheet has come
    this.node.style.minWidth = '240px';
    this._model = model;
    this._front = front;
    this._view = new GpuShareView(this.node, trans, actions);
    this._jobs = jobs;
    front.changed.connect(this.update, this);
    jobs.changed.connect(this.update, this);
  }

  override dispose(): void {
    clearInterval(this._timer);
    super.dispose();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    clearInterval(this._timer);
    this._timer = setInterval(() => this._tick(), 1000);
    this.update();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    clearInterval(this._timer);
  }

  protected override onUpdateRequest(message: Message): void {
    super.onUpdateRequest(message);
    if (this.isVisible) {
      const { last, viewer } = this._model;
      const { session, paths } = this._front;
      const again = (notebook: Notebook) => this._front.again(notebook);
      const own = session?.id;
      const jobs = this._jobs;
      this._view.show(
        last,
        { viewer, own, paths, again, jobs },
        performance.now()
      );
    }
  }

  private _tick(): void {
    if (!document.hidden) {
      this._view.tick(performance.now());
      this._jobs.tick(performance.now(), name => this._view.isOpen(name));
    }
  }

  private _front: FrontNotebook;
  private _jobs: JobsModel;
  private _model: GpuShareModel;
  private _timer: ReturnType<typeof setInterval> | undefined;
  private _view: GpuShareView;
}

/**
 * The status bar entry: the notebook in front, or all of them; a click shows
 * the panel.
 */
export class GpuShareStatus extends Widget {
  readonly wantedChanged = new Signal<this, void>(this);

  constructor(
    model: GpuShareModel,
    front: FrontNotebook,
    trans: ITranslate,
    show: () => void
  ) {
    super({ node: document.createElement('button') });
    this.addClass('jp-StatusBar-TextItem');
    this.addClass('jp-GpuShare-status');
    this.node.title = trans.__('GPU sharing: show lanes, notebooks and queue');
    this.node.onclick = show;
    this._model = model;
    this._front = front;
    this._trans = trans;
    front.changed.connect(this._tell, this);
    // the state of quick turns and waits is judged by the clock too, not only
    // when an event comes
    this._timer = setInterval(() => document.hidden || this._tell(), 1000);
    this._tell();
  }

  override dispose(): void {
    clearInterval(this._timer);
    super.dispose();
  }

  /** The status bar itself shows and hides its entries, so it has to be told. */
  get isWanted(): boolean {
    return this._isWanted;
  }

  set isWanted(isWanted: boolean) {
    this._isWanted = isWanted;
    this.wantedChanged.emit();
  }

  private _tell(): void {
    const { session } = this._front;
    const text = this._text();
    if (this.node.textContent !== text) {
      this.node.textContent = text;
    }
    this.node.dataset.state = session ? stateOf(session) : 'none';
  }

  private _text(): string {
    const { _front: front, _trans: trans } = this;
    const { state } = this._model;
    if (front.document === null) {
      return summary(state, trans);
    }
    if (front.wanted !== null && front.isBusy) {
      return trans.__('… waits for the running cell to end');
    }
    const session = front.isKnown ? front.session : undefined;
    return inThreeWords(state, session, trans);
  }

  private _front: FrontNotebook;
  private _isWanted = true;
  private _model: GpuShareModel;
  private _timer: ReturnType<typeof setInterval>;
  private _trans: ITranslate;
}
