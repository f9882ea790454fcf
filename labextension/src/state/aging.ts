/**
 * A snapshot at a later moment, if no event has come since; everything on the
 * page is drawn from it.
 */

import { resting } from './notebook';
import { runs } from './queue';
import {
  IDeviceView,
  IRestingView,
  ISessionView,
  ISnapshot,
  ITurnView
} from './snapshot';

/** An event comes at most this late. */
const LATE_SECONDS = 2;

/**
 * The same `seconds` later: waits and turns have continued, and expected waits
 * have run down.
 */
export function aged(snapshot: ISnapshot, seconds: number): ISnapshot {
  return {
    ...snapshot,
    devices: snapshot.devices.map(device => agedDevice(device, seconds))
  };
}

/**
 * The same, but no time is less than the viewer has seen in `before`: a change
 * of state arrives a moment late, and the page has counted on until then. A
 * time that is far less is a correction, and stays.
 */
export function notBelow(
  snapshot: ISnapshot,
  before: ISnapshot | null
): ISnapshot {
  const seen = new Map(
    (before?.devices ?? []).flatMap(({ sessions }) =>
      sessions.map(session => [session.id, session])
    )
  );
  const devices = snapshot.devices.map(device => ({
    ...device,
    sessions: device.sessions.map(one => atLeast(one, seen.get(one.id) ?? one))
  }));
  return { ...snapshot, devices };
}

function atLeast(now: ISessionView, before: ISessionView): ISessionView {
  return {
    ...now,
    waited_seconds: notLess(now.waited_seconds, before.waited_seconds),
    device_seconds: notLess(now.device_seconds, before.device_seconds)
  };
}

function notLess(now: number, before: number): number {
  return before - now < LATE_SECONDS ? Math.max(now, before) : now;
}

function agedDevice(device: IDeviceView, seconds: number): IDeviceView {
  return {
    ...device,
    sessions: afterUnknown(
      device.sessions.map(one => agedSession(one, seconds))
    ),
    resting: resting(device).map(one => agedResting(one, seconds)),
    // an older broker knows of none
    turns: (device.turns ?? []).map(turn => agedTurn(turn, seconds))
  };
}

function agedSession(session: ISessionView, seconds: number): ISessionView {
  const isWaiting = session.waiting_seconds !== null;
  return {
    ...session,
    idle_seconds: later(session.idle_seconds, seconds),
    waiting_seconds: later(session.waiting_seconds, seconds),
    waited_seconds: session.waited_seconds + (isWaiting ? seconds : 0),
    device_seconds: session.device_seconds + (runs(session) ? seconds : 0),
    expected_wait_seconds: left(session.expected_wait_seconds, seconds),
    // an older broker says neither
    iteration_seconds: later(session.iteration_seconds ?? null, seconds),
    remaining_seconds: left(session.remaining_seconds ?? null, seconds)
  };
}

/** A wait behind an unknown wait is unknown, too. */
function afterUnknown(sessions: ISessionView[]): ISessionView[] {
  const unknown = sessions.filter(
    one => one.position !== null && one.expected_wait_seconds === null
  );
  const first = Math.min(...unknown.map(({ position }) => position!));
  return sessions.map(one =>
    (one.position ?? 0) > first ? { ...one, expected_wait_seconds: null } : one
  );
}

function agedResting(notebook: IRestingView, seconds: number): IRestingView {
  return { ...notebook, idle_seconds: notebook.idle_seconds + seconds };
}

function agedTurn(turn: ITurnView, seconds: number): ITurnView {
  return {
    ...turn,
    began: turn.began + seconds,
    ended: later(turn.ended, seconds),
    held: turn.held + (turn.ended === null ? seconds : 0)
  };
}

function later(since: number | null, seconds: number): number | null {
  return since === null ? null : since + seconds;
}

/** An estimate that has run out was wrong, so the rest of the wait is unknown. */
function left(expected: number | null, seconds: number): number | null {
  return expected === null || expected < seconds ? null : expected - seconds;
}
