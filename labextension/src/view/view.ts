/**
 * Devices, lanes and queue as plain DOM, for the panel in JupyterLab and the
 * widget in a notebook. It needs no JupyterLab; style/base.css gives the looks.
 * The view is a function of the state, of the seconds since it came, and of
 * what the viewer has opened.
 */

import { againButton } from './cancel';
import {
  button,
  Child,
  div,
  draw,
  h,
  INode,
  labelled,
  note,
  restore,
  trouble
} from './dom';
import { clock, english, ITranslate } from '../state/format';
import {
  DISCONNECTED,
  isAdmin,
  isRefusal,
  isSnapshot,
  Notebook,
  notebooksOn,
  RECOVERING,
  State
} from '../state/notebook';
import { headline } from '../state/sentences';
import { IJobs, jobs } from './jobs';
import { lanes } from './lanes';
import { LastSnapshot } from '../state/last_snapshot';
import { memoryMap } from './memory';
import { namesOf, Paths } from '../state/names';
import { notebooks } from './notebooks';
import { arranged } from '../state/queue';
import { rulebook } from './rules';
import { IActions, IControls, IViewModel, IWish } from './view_model';
import {
  IDeviceView,
  IError,
  IPolicyView,
  ISnapshot,
  IViewer,
  VERSION
} from '../state/snapshot';
import { use } from './use';

/** The data that a view shows beside the state. */
export interface IViewData {
  viewer?: IViewer | null;
  own?: string;
  /** Names of the notebooks that this page knows. */
  paths?: Paths;
  /** How to run a cell again whose wait was cancelled; null where there is none. */
  again?: (notebook: Notebook) => (() => Promise<void>) | null;
  /** The viewer's jobs; null on pages that are not of one user. */
  jobs?: IJobs | null;
}

/** `receivedAt` is when `state` came, in milliseconds of any clock. */
export interface IStateData extends IViewData {
  state: State;
  receivedAt: number;
}

interface INotice {
  text: string;
  refused: boolean;
  /** The notebook whose wait was ended, while that can be undone. */
  ended?: Notebook;
}

/** Draws a state into a node; `tick` judges it again between two states. */
export class GpuShareView {
  /**
   * `runsKernels`: whether the server of this page starts kernels, which end
   * with it.
   */
  constructor(
    node: HTMLElement,
    trans: ITranslate = english,
    actions: IActions | null = null,
    runsKernels = true
  ) {
    this._node = node;
    this._trans = trans;
    this._actions = actions;
    this._runsKernels = runsKernels;
    node.classList.add('jp-GpuShare');
  }

  /** Shows a state on pages without a model; `now` is of the clock of `receivedAt`. */
  update(data: IStateData, now = data.receivedAt): void {
    if (data.state !== this._state) {
      this._state = data.state;
      this._last.take(data.state, data.receivedAt);
    }
    this.show(this._last, data, now);
  }

  /** `last` is the model's, which has taken states also while this was hidden. */
  show(last: LastSnapshot, data: IViewData, now: number): void {
    this._last = last;
    this._data = data;
    this.tick(now);
  }

  tick(now: number): void {
    this._now = now;
    draw(this._node, this._content());
  }

  private _content(): Child[] {
    const state = this._last.state(this._now);
    const holds = isSnapshot(state);
    // the state before the broker went stays as it was
    const shown = holds ? state : this._last.snapshot;
    const viewModel = shown && this._viewModel(shown);
    this._noteMoves(shown);
    return [
      this._notice && notice(this._notice, viewModel),
      holds ? null : this._away(state),
      viewModel &&
        div(
          'div',
          holds ? 'now' : 'now jp-mod-stale',
          { key: 'now', inert: !holds },
          ...whole(viewModel)
        ),
      // the service of jobs answers also while the broker is away
      jobs(this._data.jobs ?? null, this._controls)
    ];
  }

  /** Whether the viewer has opened the part of that name. */
  isOpen(name: string): boolean {
    return this._open.has(name);
  }

  private get _controls(): IControls {
    return {
      trans: this._trans,
      isOpen: name => this._open.has(name),
      toggle: name => this._toggle(name),
      choice: name => this._choices.get(name) ?? null,
      choose: (name, value) => this._choose(name, value),
      act: (action, sentence, wish) => void this._act(action, sentence, wish)
    };
  }

  private _viewModel(snapshot: ISnapshot): IViewModel {
    const names = namesOf(snapshot, this._data.paths ?? new Map());
    return {
      ...this._controls,
      snapshot,
      now: this._now / 1000,
      viewer: this._data.viewer ?? null,
      actions: this._actions,
      own: this._data.own ?? '',
      nameOf: ({ id, name }) => names.get(id) ?? name,
      again: notebook => this._data.again?.(notebook) ?? null,
      hasJustMoved: () => performance.now() - this._movedAt < MOVED_MS,
      refuse: (sentence, field) => this._refuse(sentence, field)
    };
  }

  /**
   * A moving queue may pull a button away from under the pointer.
   */
  private _noteMoves(snapshot: ISnapshot | null): void {
    const rows = new Map(order(snapshot).map((id, place) => [id, place]));
    for (const [id, place] of rows) {
      if ((this._rows.get(id) ?? place) !== place) {
        this._movedAt = performance.now();
      }
    }
    this._rows = rows;
  }

  private _away(state: IError | null): INode {
    const trans = this._trans;
    if (state === null) {
      return note(trans.__('Looking for the broker…'), 'away');
    }
    const age = (this._now - this._last.validAt) / 1000;
    const [what, ...means] = whatIsAway(state, this._runsKernels, trans);
    return div(
      'div',
      'away',
      { key: 'away', role: 'status' },
      h('strong', {}, what),
      ...means.map(sentence => h('p', {}, sentence)),
      this._last.snapshot && age >= 1
        ? note(trans.__('Below: what was %1 ago.', clock(age)))
        : null
    );
  }

  private _toggle(name: string): void {
    if (!this._open.delete(name)) {
      this._open.add(name);
    }
    this.tick(this._now);
  }

  private _choose(name: string, value: string | null): void {
    if (value === null) {
      this._choices.delete(name);
    } else {
      this._choices.set(name, value);
    }
    this.tick(this._now);
  }

  private async _act(
    action: Promise<void>,
    sentence: string,
    { field, ended }: IWish = {}
  ): Promise<void> {
    try {
      await action;
      this._say({ text: sentence, refused: false, ended });
    } catch (error) {
      this._refuse((error as Error).message, field);
    }
  }

  private _refuse(sentence: string, field?: Element): void {
    if (field) {
      restore(field);
    }
    this._say({ text: sentence, refused: true });
  }

  private _say(notice: INotice): void {
    this._notice = notice;
    this.tick(this._now);
    clearTimeout(this._timer);
    this._timer = setTimeout(() => {
      this._notice = null;
      this.tick(this._now);
    }, NOTICE_MS);
  }

  private _actions: IActions | null;
  private _choices = new Map<string, string>();
  private _movedAt = -Infinity;
  private _node: HTMLElement;
  private _notice: INotice | null = null;
  private _now = 0;
  private _open = new Set<string>();
  private _last = new LastSnapshot();
  private _rows = new Map<string, number>();
  private _runsKernels: boolean;
  private _state: State = null;
  private _data: IViewData = {};
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _trans: ITranslate;
}

const NOTICE_MS = 8000;
const MOVED_MS = 500; // longer than a person needs to see that a row has moved

/** The sessions in the order of their rows. */
function order(snapshot: ISnapshot | null): string[] {
  return (snapshot?.devices ?? []).flatMap(device => {
    const { running, taking, queue, others } = arranged(device);
    const rows = [...running, ...taking, ...queue, ...others];
    return rows.map(({ id }) => `${device.name} ${id}`);
  });
}

/** Sentences that say which part is away, and the consequences. */
function whatIsAway(
  state: IError,
  runsKernels: boolean,
  trans: ITranslate
): string[] {
  const { code, message } = state;
  if (isRefusal(state)) {
    return [trans.__('The broker refuses this page.'), message];
  }
  if (code === RECOVERING) {
    return [
      trans.__('The broker was restarted.'),
      trans.__('The notebooks come back to it now.')
    ];
  }
  const goesOn = trans.__(
    'A notebook that has a turn goes on; one that waits goes on waiting, and keeps its queue position. Nothing is lost, and this comes back by itself.'
  );
  return code === DISCONNECTED
    ? [
        trans.__('The server of this page does not answer. Reconnecting…'),
        ...(runsKernels ? withoutServer(trans) : withoutService(goesOn, trans))
      ]
    : [trans.__('The broker is away. Reconnecting…'), message, goesOn];
}

/** Kernels end when they notice that the process that started them is gone. */
function withoutServer(trans: ITranslate): string[] {
  return [
    trans.__(
      'If that server has ended, the kernels that it started have ended with it, and what they had in memory is gone. If only its connection to this page is lost, they go on.'
    ),
    trans.__(
      'Notebooks of other servers and scripts on the same device go on in both cases. If other tabs work, only GPU sharing is down: ask your administrator.'
    )
  ];
}

/** The service of a hub runs no kernel. */
function withoutService(goesOn: string, trans: ITranslate): string[] {
  return [
    goesOn,
    trans.__(
      'If other pages of the hub work, only GPU sharing is down: ask your administrator.'
    )
  ];
}

/** The notice stays visible however far the panel is scrolled. */
function notice(
  { text, refused, ended }: INotice,
  viewModel: IViewModel | null
): INode {
  return div(
    'p',
    `notice jp-mod-sticky${refused ? ' jp-mod-refused' : ''}`,
    { key: 'notice', role: refused ? 'alert' : 'status' },
    text,
    viewModel && ended
      ? againButton(ended, viewModel.trans.__('Run the cell again'), viewModel)
      : null
  );
}

function whole(viewModel: IViewModel): Child[] {
  const { trans, snapshot } = viewModel;
  const { devices } = snapshot;
  return [
    versions(viewModel),
    recovery(viewModel),
    rulebook(viewModel),
    ...devices.map(device => deviceOf(device, viewModel)),
    devices.length === 0
      ? note(trans.__('The broker has found no device to share.'), 'none')
      : policy(viewModel)
  ];
}

function versions({ trans, snapshot }: IViewModel): Child {
  return snapshot.version === VERSION
    ? null
    : trouble(
        trans.__(
          'This page is of version %1, the broker of %2: reload the page, and restart the server if that does not help.',
          VERSION,
          snapshot.version
        ),
        'versions'
      );
}

function recovery({ trans, snapshot }: IViewModel): Child {
  return snapshot.broker.recovering
    ? div(
        'p',
        'notice',
        { key: 'recovery', role: 'status' },
        trans.__(
          'The broker was restarted. It grants no turn until the notebooks that had one have come back.'
        )
      )
    : null;
}

function deviceOf(device: IDeviceView, viewModel: IViewModel): INode {
  const { trans, nameOf } = viewModel;
  const empty = notebooksOn(device).length === 0;
  return div(
    'section',
    'device',
    { key: device.name, 'aria-label': trans.__('Device %1', device.name) },
    h('h2', {}, device.name),
    div(
      'p',
      'headline',
      { 'aria-live': 'off' },
      headline(device, nameOf, trans, viewModel.snapshot.broker.recovering)
    ),
    memoryMap(device, viewModel),
    empty ? noNotebooks(viewModel) : lanes(device, viewModel),
    empty ? null : notebooks(device, viewModel),
    use(device, viewModel)
  );
}

function noNotebooks({ trans, snapshot }: IViewModel): INode {
  if (snapshot.broker.recovering) {
    return note(trans.__('No notebook has come back yet.'));
  }
  return div(
    'div',
    'note',
    {},
    trans.__('No notebook shares this device. To join, run'),
    h('pre', {}, '%load_ext jupyter_gpushare\n%gpushare on')
  );
}

/**
 * Choosing a policy changes nothing: it is for everybody, so it has to be
 * applied.
 */
function policy(viewModel: IViewModel): INode {
  const { trans, snapshot, actions } = viewModel;
  const chosen = viewModel.choice(POLICY) ?? snapshot.policy;
  const known = snapshot.policies.find(({ name }) => name === chosen);
  return div(
    'section',
    'policy',
    { key: 'policy' },
    ...(actions && isAdmin(viewModel.viewer)
      ? policyField(chosen, viewModel)
      : [h('span', {}, trans.__('Policy %1', snapshot.policy))]),
    note(known ? meaning(known, trans) : '')
  );
}

/** The broker's sentence. Policies are few and known, so language packs may translate it. */
function meaning({ sentence }: IPolicyView, trans: ITranslate): string {
  // eslint-disable-next-line jupyter/no-dynamic-translation
  return trans.__(sentence);
}

const POLICY = 'policy';

function policyField(chosen: string, viewModel: IViewModel): Child[] {
  const { trans, snapshot } = viewModel;
  const onchange = (event: Event) =>
    viewModel.choose(POLICY, (event.target as HTMLSelectElement).value);
  const options = snapshot.policies.map(one =>
    h('option', { value: one.name, title: meaning(one, trans) }, one.name)
  );
  return [
    labelled(
      trans.__('Policy'),
      'select',
      { value: chosen, onchange },
      ...options
    ),
    chosen === snapshot.policy ? null : policyButtons(chosen, viewModel)
  ];
}

function policyButtons(chosen: string, viewModel: IViewModel): INode {
  const { trans, snapshot, actions, act, choice, choose } = viewModel;
  const apply = () => {
    const told = trans.__('The policy is %1 now.', chosen);
    const action = actions!.choosePolicy(chosen);
    // keeps a choice that the viewer has made after the applied one
    const applied = () => choice(POLICY) === chosen && choose(POLICY, null);
    act(action.finally(applied), told);
  };
  return div(
    'span',
    'buttons',
    { key: 'apply' },
    button(trans.__('Apply to all notebooks'), apply),
    button(trans.__('Keep %1', snapshot.policy), () => choose(POLICY, null))
  );
}
