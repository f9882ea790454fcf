/** Which notebooks run, take turns or wait, in one order for the headline, the lanes and the table. */

import { Notebook, rests } from './notebook';
import { IDeviceView, ISessionView, ISnapshot, ITurnView } from './snapshot';

/** Seconds; a longer turn does not change while a person reads. */
export const QUICK_SECONDS = 3;
// at least and at most, until a session's next quick turn
const ROUND_SECONDS = [6, 20];

/** The notebooks of a device, each in one of the groups. */
export interface IArrangement {
  running: ISessionView[];
  /** Listed in an order that does not change with their states. */
  taking: ISessionView[];
  /** Sorted by queue position. */
  queue: ISessionView[];
  others: ISessionView[];
}

/**
 * The groups at the moment of the device's snapshot, which the caller has aged
 * to the present.
 */
export function arranged(device: IDeviceView): IArrangement {
  const quick = takers(device);
  const steady = inOrder(device.sessions.filter(one => !quick.has(one.id)));
  return {
    running: steady.filter(runs),
    taking: byName(device.sessions.filter(one => quick.has(one.id))),
    queue: steady.filter(one => !runs(one) && waits(one)),
    others: steady.filter(one => !runs(one) && !waits(one))
  };
}

export function runs(session: ISessionView): boolean {
  return session.state === 'running' || session.state === 'overdue';
}

/**
 * A session with a queue position waits, for a turn or for memory to come back.
 */
export function waits(session: ISessionView): boolean {
  return session.position !== null;
}

/** Whether it has had a turn, so that the end of its cell may lose something. */
export function hadTurns(
  { id, iterations, device_seconds }: ISessionView,
  { devices }: ISnapshot
): boolean {
  return (
    iterations > 0 ||
    device_seconds > 0 ||
    devices.some(({ turns }) => turns?.some(({ session }) => session === id))
  );
}

/** Whether it is still in the same wait; a turn ends a wait. */
export function isSameWait(then: ISessionView, now?: Notebook): boolean {
  return (
    now !== undefined &&
    !rests(now) &&
    waits(now) &&
    now.device_seconds === then.device_seconds
  );
}

/**
 * Whether a cell may run there now, and would not run twice: nothing runs, waits
 * or is throttled, and no cell computes without the device.
 */
export function isFree(notebook: Notebook): boolean {
  return (
    rests(notebook) ||
    !(
      runs(notebook) ||
      waits(notebook) ||
      notebook.waiting_seconds !== null ||
      notebook.busy
    )
  );
}

/** Those that run, then the queue by its positions, then the others by name. */
export function inOrder(sessions: ISessionView[]): ISessionView[] {
  return [...sessions].sort(
    (a, b) =>
      rank(a) - rank(b) ||
      (a.position ?? 0) - (b.position ?? 0) ||
      compareNames(a, b)
  );
}

export function byName<T extends Notebook>(notebooks: T[]): T[] {
  return [...notebooks].sort(compareNames);
}

/** The turn that a session has now. */
export function turnOf(
  session: ISessionView,
  device: IDeviceView
): ITurnView | null {
  const turns = device.turns ?? [];
  return turns.find(one => isOpen(one) && one.session === session.id) ?? null;
}

/**
 * Sessions that take turns so quickly that the running one changes while a
 * person reads, if there are several. A present turn that has become long ends
 * this, even before an event says so.
 */
export function takers(device: IDeviceView): Set<string> {
  const turns = new Map<string, ITurnView[]>();
  for (const turn of device.turns ?? []) {
    turns.set(turn.session, [...(turns.get(turn.session) ?? []), turn]);
  }
  const found = device.sessions.filter(one => {
    const own = turns.get(one.id) ?? [];
    return (
      (runs(one) || waits(one) || loads(one, own)) &&
      isQuick(own) &&
      moves(one.lane, device.turns)
    );
  });
  return new Set(found.length > 1 ? found.map(({ id }) => id) : []);
}

/**
 * Whether the session of these turns does something else for a moment while its
 * cell goes on, such as loading its next batch.
 */
function loads({ busy, state }: ISessionView, turns: ITurnView[]): boolean {
  const ended = turns[turns.length - 1]?.ended ?? QUICK_SECONDS;
  return busy && state === 'idle' && ended < QUICK_SECONDS;
}

/**
 * Whether turns change in a lane: some turn of the device has changed, and no
 * long one holds the lane itself.
 */
function moves(lane: number | null, turns: ITurnView[]): boolean {
  const changed = Math.min(...turns.map(sinceChange));
  const isHeld = turns.some(
    one => isOpen(one) && one.lane === lane && one.held >= QUICK_SECONDS
  );
  return changed < QUICK_SECONDS && !isHeld;
}

/** The longest time that a turn can have been in its present state. */
function sinceChange(turn: ITurnView): number {
  return turn.ended ?? turn.held;
}

/**
 * Whether the session of these turns, the oldest first, had several short ones
 * and will soon have the next. A large round takes longer, and a session counts
 * until the round has ended.
 */
function isQuick(turns: ITurnView[]): boolean {
  const [last, former] = turns.slice(-2).reverse();
  if (!last || !(former || hasGaps(last))) {
    return false;
  }
  const [least, most] = ROUND_SECONDS;
  const round = 2 * ((former ?? last).began - last.began);
  return (
    Math.max(last.held, former?.held ?? 0) < QUICK_SECONDS &&
    (last.ended ?? 0) < Math.min(most, Math.max(least, round))
  );
}

/** Several turns with short gaps are sent as one, with gaps. */
function hasGaps(turn: ITurnView): boolean {
  return turn.held < 0.9 * (turn.began - (turn.ended ?? 0));
}

function isOpen(turn: ITurnView): boolean {
  return turn.ended === null;
}

function rank(session: ISessionView): number {
  const order = ['overdue', 'running', 'waiting', 'throttled'];
  const found = order.indexOf(waits(session) ? 'waiting' : session.state);
  return found < 0 ? order.length : found;
}

function compareNames(a: Notebook, b: Notebook): number {
  return (
    lastPart(a.name).localeCompare(lastPart(b.name)) || a.id.localeCompare(b.id)
  );
}

function lastPart(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}
