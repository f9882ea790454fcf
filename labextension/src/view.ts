/**
 * Devices, lanes and queue as plain DOM, for the panel in JupyterLab and the widget in a notebook.
 * Needs no JupyterLab; style/base.css gives the looks. The view is a function of the state, of the
 * seconds since it came, and of what the viewer has opened.
 */

import { Child, div, draw, h, INode, restore } from './dom';
import {
  clock,
  DISCONNECTED,
  english,
  headline,
  isSnapshot,
  ITranslate,
  resting,
  rules,
  State
} from './format';
import { lanes } from './lanes';
import { memoryMap } from './memory';
import { notebooks } from './notebooks';
import { rulebook } from './rules';
import { IActions, IScene } from './scene';
import {
  IDeviceView,
  IError,
  ISessionView,
  ISnapshot,
  IViewer,
  VERSION
} from './snapshot';
import { use } from './use';

/** What there is to see; `receivedAt` is when `state` came, in milliseconds of any clock. */
export interface ISight {
  state: State;
  receivedAt: number;
  viewer?: IViewer | null;
  own?: string;
}

interface INotice {
  text: string;
  refused: boolean;
}

/** Draws what there is to see into a node; `tick` moves the clocks between two states. */
export class GpuShareView {
  constructor(
    node: HTMLElement,
    trans: ITranslate = english,
    actions: IActions | null = null
  ) {
    this._node = node;
    this._trans = trans;
    this._actions = actions;
    node.classList.add('jp-GpuShare');
  }

  /** `now` is of the clock of `receivedAt`. */
  update(sight: ISight, now = sight.receivedAt): void {
    if (isSnapshot(sight.state)) {
      this._seen = { state: sight.state, receivedAt: sight.receivedAt };
    }
    this._sight = sight;
    this.tick(now);
  }

  tick(now: number): void {
    this._now = now;
    draw(this._node, this._content());
  }

  private _content(): Child[] {
    const { state } = this._sight;
    const parts: Child[] = [this._notice && notice(this._notice)];
    if (!isSnapshot(state)) {
      parts.push(this._away(state));
    }
    if (this._seen !== null) {
      const scene = this._scene(this._seen.state, this._seen.receivedAt);
      parts.push(
        div(
          'div',
          isSnapshot(state) ? 'now' : 'now jp-mod-stale',
          { key: 'now', inert: !isSnapshot(state) },
          ...whole(scene)
        )
      );
    }
    return parts;
  }

  private _scene(snapshot: ISnapshot, receivedAt: number): IScene {
    return {
      trans: this._trans,
      snapshot,
      now: this._now / 1000,
      // what was when the broker went stays as it was
      elapsed: isSnapshot(this._sight.state)
        ? Math.max(0, this._now - receivedAt) / 1000
        : 0,
      viewer: this._sight.viewer ?? null,
      actions: this._actions,
      own: this._sight.own ?? '',
      settled: sessions => this._settled(sessions),
      isOpen: name => this._open.has(name),
      toggle: name => this._toggle(name),
      act: (deed, sentence, field) => void this._act(deed, sentence, field)
    };
  }

  /** A queue that moves on must not pull away the button that is about to be pressed. */
  private _settled(sessions: ISessionView[]): ISessionView[] {
    const isUsed = this._node.querySelector('table:hover') !== null;
    const place = ({ id }: ISessionView) => this._order.get(id) ?? Infinity;
    const order = isUsed
      ? [...sessions].sort((a, b) => place(a) - place(b) || 0)
      : sessions;
    order.forEach(({ id }, index) => this._order.set(id, index));
    return order;
  }

  private _away(state: IError | null): INode {
    const trans = this._trans;
    if (state === null) {
      return div(
        'p',
        'note',
        { key: 'away' },
        trans.__('Looking for the broker…')
      );
    }
    return div(
      'div',
      'away',
      { key: 'away', role: 'status' },
      ...whatIsAway(state, trans),
      h(
        'p',
        {},
        trans.__(
          'Whoever has a turn goes on; whoever waits goes on waiting, and keeps its place. Nothing is lost, and this comes back by itself.'
        )
      ),
      this._seen &&
        div(
          'p',
          'note',
          {},
          trans.__(
            'Below: what was %1 ago.',
            clock((this._now - this._seen.receivedAt) / 1000)
          )
        )
    );
  }

  private _toggle(name: string): void {
    if (!this._open.delete(name)) {
      this._open.add(name);
    }
    this.tick(this._now);
  }

  private async _act(
    deed: Promise<void>,
    sentence: string,
    field?: Element
  ): Promise<void> {
    try {
      await deed;
      this._notice = { text: sentence, refused: false };
    } catch (error) {
      this._notice = { text: (error as Error).message, refused: true };
      if (field) {
        restore(field);
      }
    }
    this.tick(this._now);
    clearTimeout(this._timer);
    this._timer = setTimeout(() => {
      this._notice = null;
      this.tick(this._now);
    }, NOTICE_MS);
  }

  private _actions: IActions | null;
  private _node: HTMLElement;
  private _notice: INotice | null = null;
  private _now = 0;
  private _open = new Set<string>();
  private _order = new Map<string, number>();
  private _seen: { state: ISnapshot; receivedAt: number } | null = null;
  private _sight: ISight = { state: null, receivedAt: 0 };
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _trans: ITranslate;
}

const NOTICE_MS = 8000;

function whatIsAway({ code, message }: IError, trans: ITranslate): INode[] {
  const [who, why] =
    code === DISCONNECTED
      ? [
          trans.__('The server of this page does not answer. Reconnecting…'),
          trans.__(
            'If other pages of that server work, jupyter_gpushare alone is switched off there, or down.'
          )
        ]
      : [trans.__('The broker is away. Reconnecting…'), message];
  return [h('strong', {}, who), h('p', {}, why)];
}

function notice({ text, refused }: INotice): INode {
  return div(
    'p',
    `notice${refused ? ' jp-mod-refused' : ''}`,
    { key: 'notice', role: refused ? 'alert' : 'status' },
    text
  );
}

function whole(scene: IScene): Child[] {
  const { trans, snapshot } = scene;
  const { devices } = snapshot;
  return [
    versions(scene),
    rulebook(scene),
    ...devices.map(device => deviceOf(device, scene)),
    devices.length === 0
      ? div(
          'p',
          'note',
          { key: 'none' },
          trans.__('The broker has found no device to share.')
        )
      : policy(scene)
  ];
}

function versions({ trans, snapshot }: IScene): Child {
  return snapshot.version === VERSION
    ? null
    : div(
        'p',
        'notice jp-mod-refused',
        { key: 'versions', role: 'status' },
        trans.__(
          'This page is of version %1, the broker of %2: reload the page, and restart the server if that does not help.',
          VERSION,
          snapshot.version
        )
      );
}

function deviceOf(device: IDeviceView, scene: IScene): INode {
  const { trans, elapsed } = scene;
  const empty = device.sessions.length + resting(device).length === 0;
  return div(
    'section',
    'device',
    { key: device.name, 'aria-label': trans.__('Device %1', device.name) },
    h('h2', {}, device.name),
    div(
      'p',
      'headline',
      { 'aria-live': 'off' },
      headline(device, elapsed, trans)
    ),
    memoryMap(device, scene),
    empty ? nobody(scene) : lanes(device, scene),
    empty ? null : notebooks(device, scene),
    use(device, scene)
  );
}

function nobody({ trans }: IScene): INode {
  return div(
    'div',
    'note',
    {},
    trans.__('No notebook shares this device. To join, run'),
    h('pre', {}, '%load_ext jupyter_gpushare\n%gpushare on')
  );
}

function policy(scene: IScene): INode {
  const { trans, snapshot, actions, act } = scene;
  const known = snapshot.policies.find(({ name }) => name === snapshot.policy);
  const choose = (event: Event) => {
    const field = event.target as HTMLSelectElement;
    const name = field.value;
    const told = trans.__('The policy is %1 now.', name);
    act(actions!.choosePolicy(name), told, field);
  };
  const options = snapshot.policies.map(({ name, sentence }) =>
    h('option', { value: name, title: sentence }, name)
  );
  return div(
    'section',
    'policy',
    { key: 'policy' },
    actions && rules(scene.viewer)
      ? h(
          'label',
          {},
          `${trans.__('Policy')} `,
          div(
            'select',
            'input',
            { value: snapshot.policy, onchange: choose },
            ...options
          )
        )
      : h('span', {}, trans.__('Policy %1', snapshot.policy)),
    div('p', 'note', {}, known?.sentence ?? '')
  );
}
