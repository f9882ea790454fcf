/**
 * Devices, lanes and queue as plain DOM. Text only ever enters as text nodes and attributes, so a
 * notebook's name cannot be markup. Needs no JupyterLab; style/base.css gives the looks.
 */

import {
  bytes,
  clock,
  english,
  fileName,
  inOrder,
  isSnapshot,
  ITranslate,
  State,
  stateName
} from './format';
import { IDeviceView, ILaneView, ISessionView } from './snapshot';

/** Draws states into a node; `tick` moves the clocks between two of them. */
export class GpuShareView {
  constructor(node: HTMLElement, trans: ITranslate = english) {
    this._node = node;
    this._trans = trans;
    node.classList.add('jp-GpuShare');
  }

  /** `receivedAt` and `now` are of one clock, in milliseconds. */
  update(state: State, receivedAt: number, now = receivedAt): void {
    this._clocks = [];
    this._receivedAt = receivedAt;
    this._node.replaceChildren(
      ...(isSnapshot(state)
        ? state.devices.map(device => this._device(device))
        : [this._away(state)])
    );
    this.tick(now);
  }

  tick(now: number): void {
    const elapsed = Math.max(0, now - this._receivedAt) / 1000;
    this._clocks.forEach(show => show(elapsed));
  }

  private _away(state: Exclude<State, { devices: unknown }>): HTMLElement {
    const trans = this._trans;
    if (state === null) {
      return element('p', 'note', trans.__('Looking for the broker…'));
    }
    return element('div', 'note jp-mod-away', [
      element('strong', '', trans.__('The broker is away.')),
      element(
        'p',
        '',
        state.message || trans.__('The server does not answer.')
      ),
      element('p', '', trans.__('Notebooks go on; this comes back by itself.'))
    ]);
  }

  private _device(device: IDeviceView): HTMLElement {
    return element('section', 'device', [
      this._title(device),
      this._memory(device),
      ...device.lanes.map(lane => this._lane(lane, device)),
      device.sessions.length > 0 ? this._table(device) : this._nobody()
    ]);
  }

  private _title(device: IDeviceView): HTMLElement {
    const taken = device.capacity_bytes - device.free_bytes;
    return element('header', 'title', [
      element('strong', '', device.name),
      element(
        'span',
        'figure',
        this._trans.__('%1 of %2', bytes(taken), bytes(device.capacity_bytes))
      )
    ]);
  }

  private _memory(device: IDeviceView): HTMLElement {
    const trans = this._trans;
    const lanes = device.lanes.reduce((sum, lane) => sum + lane.bytes, 0);
    const bar = element('div', 'memory', [
      this._part('persistent', device.persistent_bytes, device),
      this._part('lanes', lanes, device)
    ]);
    bar.setAttribute('role', 'img');
    bar.title = trans.__(
      '%1 resident, %2 in lanes, %3 free',
      bytes(device.persistent_bytes),
      bytes(lanes),
      bytes(device.free_bytes)
    );
    bar.setAttribute('aria-label', bar.title);
    return bar;
  }

  private _part(name: string, count: number, device: IDeviceView): HTMLElement {
    const part = element('span', `part jp-mod-${name}`);
    part.style.width = `${(100 * count) / Math.max(1, device.capacity_bytes)}%`;
    return part;
  }

  private _lane(lane: ILaneView, device: IDeviceView): HTMLElement {
    const trans = this._trans;
    const holder = device.sessions.find(({ id }) => id === lane.holder);
    const bar = element('div', `lane${holder ? ' jp-mod-held' : ''}`, [
      element(
        'span',
        'name',
        holder ? fileName(holder.name) : trans.__('free')
      ),
      element('span', 'figure', bytes(lane.bytes))
    ]);
    const members = trans._n(
      '%1 notebook takes turns here',
      '%1 notebooks take turns here',
      lane.members.length
    );
    bar.title = `${trans.__('Lane %1', lane.id)}: ${members}`;
    return bar;
  }

  private _nobody(): HTMLElement {
    return element('p', 'note', [
      this._trans.__('No notebook shares this device. To join, run'),
      element('pre', '', '%load_ext jupyter_gpushare\n%gpushare on')
    ]);
  }

  private _table(device: IDeviceView): HTMLElement {
    const trans = this._trans;
    const titles = [
      '',
      trans.__('Notebook'),
      trans.__('Wait'),
      trans.__('Memory')
    ];
    const heads = titles.map(title => element('th', '', title));
    return element('table', 'sessions', [
      element('thead', '', [element('tr', '', heads)]),
      ...inOrder(device.sessions).map(session => this._session(session))
    ]);
  }

  /** Two rows: figures, and under them all that is a sentence. */
  private _session(session: ISessionView): HTMLElement {
    const place = element('td', 'place', [
      element('span', 'badge', `${session.place ?? ''}`)
    ]) as HTMLTableCellElement;
    place.rowSpan = 2;
    const detail = element('td', 'detail', this._detail(session));
    (detail as HTMLTableCellElement).colSpan = 3;
    const body = element('tbody', `session jp-mod-${session.state}`, [
      element('tr', '', [
        place,
        element('td', 'name', fileName(session.name)),
        element('td', 'wait', this._wait(session)),
        element('td', 'size', this._size(session))
      ]),
      element('tr', '', [detail])
    ]);
    body.title = this._tooltip(session);
    return body;
  }

  private _detail(session: ISessionView): (string | Node)[] {
    const state = stateName(session, this._trans);
    const text = session.reason || `${state} · ${session.user}`;
    const expected = session.expected_wait_seconds;
    if (expected === null) {
      return [text];
    }
    const left = (elapsed: number) =>
      expected - elapsed < 1
        ? this._trans.__('any moment now')
        : this._trans.__('≈ %1 to go', clock(expected - elapsed));
    return [`${text} · `, this._clock(left)];
  }

  private _wait(session: ISessionView): Node[] {
    const waiting = session.waiting_seconds;
    return waiting === null
      ? []
      : [this._clock(elapsed => clock(waiting + elapsed))];
  }

  private _size(session: ISessionView): string {
    return session.measured
      ? bytes(session.persistent_bytes + session.ephemeral_bytes)
      : '…';
  }

  private _tooltip(session: ISessionView): string {
    const trans = this._trans;
    const size = session.measured
      ? trans.__(
          '%1 resident and up to %2 inside an iteration',
          bytes(session.persistent_bytes),
          bytes(session.ephemeral_bytes)
        )
      : trans.__('Memory is known after its first iteration');
    const disk = session.paged_out_bytes
      ? '\n' + trans.__('%1 on disk', bytes(session.paged_out_bytes))
      : '';
    const used = trans.__(
      '%1 iterations, %2 on the device, %3 waited',
      session.iterations,
      clock(session.device_seconds),
      clock(session.waited_seconds)
    );
    const rank = trans.__(
      'Weight %1, priority %2',
      session.weight,
      session.priority
    );
    return `${session.name} (${session.user})\n${size}${disk}\n${used}\n${rank}`;
  }

  /** A text that depends on the seconds since the state came. */
  private _clock(text: (elapsed: number) => string): Text {
    const node = document.createTextNode('');
    this._clocks.push(elapsed => {
      node.data = text(elapsed);
    });
    return node;
  }

  private _clocks: ((elapsed: number) => void)[] = [];
  private _node: HTMLElement;
  private _receivedAt = 0;
  private _trans: ITranslate;
}

/** An element of class `jp-GpuShare-{name}`; strings become text nodes. */
function element(
  tag: string,
  name: string,
  content: string | (string | Node)[] = []
): HTMLElement {
  const node = document.createElement(tag);
  if (name) {
    node.className = `jp-GpuShare-${name}`;
  }
  node.append(...(typeof content === 'string' ? [content] : content));
  return node;
}
