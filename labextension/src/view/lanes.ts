/**
 * Lanes, each with its running turn and the last minute of its members: which
 * ran, which waited.
 */

import { coLane } from './co_lane';
import { div, h, INode, svg } from './dom';
import { bytes, clock, stem } from '../state/format';
import {
  gang,
  Notebook,
  notebooksOn,
  resting,
  rests,
  stateOf
} from '../state/notebook';
import { atOnce, QUICK_SIGN, sign } from '../state/sentences';
import { arranged, byName, runs, takers, waits } from '../state/queue';
import { IViewModel } from './view_model';
import { IDeviceView, ILaneView, ITurnView } from '../state/snapshot';

export const SHOWN_SECONDS = 60;
const ROWS = 6;
const LOWEST = 0.12; // of a row, for the least part of a turn
const ENDING = 4; // characters of a name that stay where it is cut

export function lanes(
  device: IDeviceView,
  viewModel: IViewModel
): INode | null {
  const { trans } = viewModel;
  return device.lanes.length === 0
    ? null
    : div(
        'section',
        'lanes',
        { 'aria-label': trans.__('Lanes of %1', device.name) },
        ...device.lanes
          .filter(lane => isShown(lane, device))
          .map(lane => laneRow(lane, device, viewModel))
      );
}

/**
 * Whether to show a lane: among many, only those with a turn or a waiting
 * member.
 */
function isShown(lane: ILaneView, device: IDeviceView): boolean {
  return (
    device.lanes.length <= ROWS ||
    lane.holder !== null ||
    device.sessions.some(one => one.lane === lane.id && waits(one))
  );
}

function laneRow(
  lane: ILaneView,
  device: IDeviceView,
  viewModel: IViewModel
): INode {
  const { trans } = viewModel;
  const rows = inLane(lane, device);
  const shown = new Set(rows.map(({ id }) => id));
  const hidden = lane.members.filter(id => !shown.has(id)).length;
  const gone = goneRow(lane, device, viewModel);
  const said =
    rows.length > 0
      ? hidden > 0 && trans._n('and %1 more', 'and %1 more', hidden)
      : gone === null && trans.__('No turns in the last minute.');
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
        [
          ...(lane.bytes > 0 ? [bytes(lane.bytes)] : []),
          trans._n('%1 notebook', '%1 notebooks', lane.members.length)
        ].join(', ')
      )
    ),
    coLane(lane, device, viewModel),
    ...rows.map(notebook => memberRow(notebook, device, viewModel)),
    gone,
    rows.length > 0 || gone !== null ? axis(viewModel) : null,
    said ? div('div', 'more', { key: 'more' }, said) : null
  );
}

/** The legend of the strips above it. */
function axis({ trans }: IViewModel): INode {
  return div(
    'div',
    'axis',
    { key: 'axis', 'aria-hidden': 'true' },
    h('span', {}, trans.__('−1 min')),
    h(
      'span',
      {},
      div('span', 'turnKey', {}),
      trans.__('turn'),
      div('span', 'waitKey', {}),
      trans.__('wait')
    ),
    h('span', {}, trans.__('now'))
  );
}

/**
 * Those that run, those that take turns and the queue in its order, as in the
 * table; then those that had turns in the last minute, though their memory has
 * left the lane since.
 */
function inLane(lane: ILaneView, device: IDeviceView): Notebook[] {
  const { running, taking, queue, others } = arranged(device);
  const lanes = new Map(
    recent(device).map(turn => [turn.session, turn.lane] as const)
  );
  const had = byName(
    [...others, ...resting(device)].filter(({ id }) => lanes.has(id))
  );
  const laneOf = (one: Notebook) =>
    (rests(one) ? null : one.lane) ?? lanes.get(one.id);
  return [...running, ...taking, ...queue, ...had]
    .filter(one => laneOf(one) === lane.id)
    .slice(0, ROWS);
}

function recent(device: IDeviceView): ITurnView[] {
  return (device.turns ?? []).filter(turn => (turn.ended ?? 0) < SHOWN_SECONDS);
}

function memberRow(
  notebook: Notebook,
  device: IDeviceView,
  viewModel: IViewModel
): INode {
  const turns = recent(device).filter(turn => turn.session === notebook.id);
  // a state that changes faster than a person reads is not shown as if it
  // stayed
  const [kind, shown] = takers(device).has(notebook.id)
    ? ['quick', QUICK_SIGN]
    : [stateOf(notebook), sign(notebook)];
  return div(
    'div',
    `member jp-mod-${kind}`,
    { key: notebook.id, title: whose(notebook, viewModel) },
    div('span', 'sign', { 'aria-hidden': 'true' }, shown),
    cut(stem(viewModel.nameOf(notebook))),
    strip(turns, notebook.name, waitLine(notebook), viewModel)
  );
}

/** A name that loses its middle where it is too long: many differ in their ends alone. */
function cut(name: string): INode {
  const characters = [...name];
  return div(
    'span',
    'name',
    {},
    div('span', 'beginning', {}, characters.slice(0, -ENDING).join('')),
    h('span', {}, characters.slice(-ENDING).join(''))
  );
}

function whose(notebook: Notebook, { trans }: IViewModel): string {
  const who = `${notebook.name} (${notebook.user})`;
  return !rests(notebook) && gang(notebook).length > 0
    ? `${who}: ${atOnce(notebook, trans)}`
    : who;
}

/**
 * The turns of notebooks that have gone since; without them the lane would seem
 * to have idled.
 */
function goneRow(
  lane: ILaneView,
  device: IDeviceView,
  viewModel: IViewModel
): INode | null {
  const here = new Set(notebooksOn(device).map(({ id }) => id));
  const turns = recent(device).filter(
    turn => turn.lane === lane.id && !here.has(turn.session)
  );
  const name = viewModel.trans.__('closed');
  return turns.length === 0
    ? null
    : div(
        'div',
        'member',
        { key: 'gone' },
        div('span', 'sign', { 'aria-hidden': 'true' }, '×'),
        cut(name),
        strip(turns, name, '', viewModel)
      );
}

/**
 * A row of the timeline: bars for turns, a dotted line for the present wait.
 */
function strip(
  turns: ITurnView[],
  name: string,
  wait: string,
  viewModel: IViewModel
): INode {
  const { trans, now } = viewModel;
  const shares = slices(turns, now);
  const held = [...shares.values()].reduce((sum, share) => sum + share, 0);
  const label = trans.__(
    '%1 had the lane for %2 of the last minute',
    name,
    clock(held)
  );
  return svg(
    'strip',
    label,
    `0 0 ${SHOWN_SECONDS} 1`,
    h('path', { class: 'jp-GpuShare-waited', d: wait }),
    h('path', { class: 'jp-GpuShare-turns', d: bars(shares, now) })
  );
}

/**
 * Which part of each second a session had the lane. Seconds are counted by the
 * clock, not back from now, so that the bars move and do not flicker.
 */
function slices(turns: ITurnView[], now: number): Map<number, number> {
  const shares = new Map<number, number>();
  for (const turn of turns) {
    const start = now - turn.began;
    const end = now - (turn.ended ?? 0);
    const density = end > start ? Math.min(1, turn.held / (end - start)) : 0;
    const first = Math.max(start, now - SHOWN_SECONDS);
    for (let second = Math.floor(first); second < end; second++) {
      const part = Math.min(end, second + 1) - Math.max(first, second);
      shares.set(second, (shares.get(second) ?? 0) + density * part);
    }
  }
  return shares;
}

/** Columns as high as their shares; adjacent equal ones are merged. */
function bars(shares: Map<number, number>, now: number): string {
  const columns: { from: number; to: number; high: string }[] = [];
  for (const second of [...shares.keys()].sort((a, b) => a - b)) {
    const share = shares.get(second)!;
    const full = Math.min(
      1,
      Math.max(LOWEST, share / Math.min(1, now - second))
    );
    const high = full.toFixed(2);
    const last = columns[columns.length - 1];
    if (last?.to === second && last.high === high) {
      last.to = second + 1;
    } else {
      columns.push({ from: second, to: second + 1, high });
    }
  }
  return columns
    .map(({ from, to, high }) => {
      const start = Math.max(0, SHOWN_SECONDS - (now - from));
      const wide = Math.min(SHOWN_SECONDS, SHOWN_SECONDS - (now - to)) - start;
      return `M${start.toFixed(2)} 1v-${high}h${wide.toFixed(2)}v${high}z`;
    })
    .join('');
}

function waitLine(notebook: Notebook): string {
  if (rests(notebook) || notebook.waiting_seconds === null || runs(notebook)) {
    return '';
  }
  const since = SHOWN_SECONDS - notebook.waiting_seconds;
  return `M${Math.max(0, since).toFixed(2)} .5H${SHOWN_SECONDS}`;
}
