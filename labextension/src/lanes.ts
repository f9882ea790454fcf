/** Lanes, each with its running turn and the last minute of its members: who ran, who waited. */

import { div, h, INode } from './dom';
import { bytes, clock, fileName, inOrder, runs, sign, waits } from './format';
import { IScene } from './scene';
import { IDeviceView, ILaneView, ISessionView, ITurnView } from './snapshot';

export const SHOWN_SECONDS = 60;
const ROWS = 6;
const THINNEST = 0.3; // of a row, for a bar of many short turns

export function lanes(device: IDeviceView, scene: IScene): INode | null {
  const { trans } = scene;
  return device.lanes.length === 0
    ? null
    : div(
        'section',
        'lanes',
        { 'aria-label': trans.__('Lanes of %1', device.name) },
        ...device.lanes
          .filter(lane => isShown(lane, device))
          .map(lane => laneRow(lane, device, scene))
      );
}

/** Of many lanes, those in which something happens. */
function isShown(lane: ILaneView, device: IDeviceView): boolean {
  return (
    device.lanes.length <= ROWS ||
    lane.holder !== null ||
    device.sessions.some(one => one.lane === lane.id && waits(one))
  );
}

function laneRow(lane: ILaneView, device: IDeviceView, scene: IScene): INode {
  const { trans } = scene;
  const rows = inLane(lane, device, scene.elapsed);
  const hidden = lane.members.length - rows.length;
  return div(
    'div',
    'lane',
    { key: `lane ${lane.id}` },
    div(
      'div',
      'laneTitle',
      {},
      h('strong', {}, trans.__('Lane %1', lane.id)),
      div(
        'span',
        'figure',
        {},
        `${bytes(lane.bytes)}, ${trans._n(
          '%1 notebook in turn',
          '%1 notebooks in turn',
          lane.members.length
        )}`
      ),
      div('span', 'axis', {}, trans.__('last minute'))
    ),
    ...rows.map(session => memberRow(session, device, scene)),
    hidden > 0 && rows.length > 0
      ? div(
          'div',
          'more',
          { key: 'more' },
          trans._n(
            '%1 other had no turn or is further back',
            '%1 others had no turn or are further back',
            hidden
          )
        )
      : null,
    rows.length === 0
      ? div(
          'div',
          'more',
          { key: 'none' },
          trans.__('No turns in the last minute.')
        )
      : null
  );
}

/** Who runs, who waits, and who had a turn just now. */
function inLane(
  lane: ILaneView,
  device: IDeviceView,
  elapsed: number
): ISessionView[] {
  const ran = new Set(recent(device, elapsed).map(turn => turn.session));
  const members = device.sessions.filter(
    one =>
      one.lane === lane.id &&
      (one.id === lane.holder || waits(one) || ran.has(one.id))
  );
  return inOrder(members).slice(0, ROWS);
}

function recent(device: IDeviceView, elapsed: number): ITurnView[] {
  return (device.turns ?? []).filter(
    turn => (turn.ended === null ? 0 : turn.ended + elapsed) < SHOWN_SECONDS
  );
}

function memberRow(
  session: ISessionView,
  device: IDeviceView,
  scene: IScene
): INode {
  const turns = recent(device, scene.elapsed).filter(
    turn => turn.session === session.id
  );
  return div(
    'div',
    `member jp-mod-${session.state}`,
    { key: session.id, title: `${session.name} (${session.user})` },
    div('span', 'sign', { 'aria-hidden': 'true' }, sign(session)),
    div('span', 'name', {}, fileName(session.name)),
    strip(turns, session, scene)
  );
}

/** A row of the timeline: a bar for each turn, a dotted line for the wait that goes on. */
function strip(
  turns: ITurnView[],
  session: ISessionView,
  scene: IScene
): INode {
  const { trans, elapsed } = scene;
  const held = turns.reduce((sum, turn) => sum + heldIn(turn, elapsed), 0);
  const label = trans.__(
    '%1 had the lane for %2 of the last minute',
    session.name,
    clock(held)
  );
  return h(
    'svg',
    {
      class: 'jp-GpuShare-strip',
      viewBox: `0 0 ${SHOWN_SECONDS} 1`,
      preserveAspectRatio: 'none',
      role: 'img',
      'aria-label': label
    },
    h('path', { class: 'jp-GpuShare-waited', d: waitLine(session, elapsed) }),
    h('path', {
      class: 'jp-GpuShare-turns',
      d: turns.map(turn => box(turn, elapsed)).join('')
    })
  );
}

/** Seconds ago as a place on the strip. */
function place(ago: number): number {
  return Math.min(SHOWN_SECONDS, Math.max(0, SHOWN_SECONDS - ago));
}

/** How much of a turn lies in the minute that is shown. */
function heldIn(turn: ITurnView, elapsed: number): number {
  const now = turn.ended === null;
  const ended = now ? 0 : turn.ended! + elapsed;
  const length = turn.began + elapsed - ended;
  const held = turn.held + (now ? elapsed : 0);
  const shown = Math.min(length, SHOWN_SECONDS - ended);
  return length > 0 ? Math.max(0, (held * shown) / length) : 0;
}

/** As high as the part of its time in which the lane was really held. */
function box(turn: ITurnView, elapsed: number): string {
  const now = turn.ended === null;
  const start = place(turn.began + elapsed);
  const end = place(now ? 0 : turn.ended! + elapsed);
  const length = turn.began + elapsed - (now ? 0 : turn.ended! + elapsed);
  const held = turn.held + (now ? elapsed : 0);
  const share = length > 0.1 ? held / length : 1;
  const high = Math.min(1, Math.max(THINNEST, share));
  const wide = Math.max(0.15, end - start);
  return `M${start.toFixed(2)} ${((1 - high) / 2).toFixed(2)}h${wide.toFixed(2)}v${high.toFixed(2)}h${(-wide).toFixed(2)}z`;
}

function waitLine(session: ISessionView, elapsed: number): string {
  return session.waiting_seconds === null || runs(session)
    ? ''
    : `M${place(session.waiting_seconds + elapsed).toFixed(2)} .5H${SHOWN_SECONDS}`;
}
