/** States as a server sends them, for the tests. */

import {
  IDeviceView,
  IRestingView,
  ISessionView,
  ISnapshot,
  ITurnView,
  IViewer,
  VERSION
} from '../src/state/snapshot';

const GIB = 2 ** 30;

export function session(changes: Partial<ISessionView> = {}): ISessionView {
  return {
    id: 'a',
    name: 'lab/alice.ipynb',
    user: 'alice',
    pid: 1,
    state: 'idle',
    persistent_bytes: GIB,
    ephemeral_bytes: GIB / 2,
    measured: true,
    lane: 1,
    position: null,
    waiting_seconds: null,
    expected_wait_seconds: null,
    reason: '',
    device_seconds: 61,
    waited_seconds: 5,
    iterations: 1200,
    remaining_iterations: null,
    weight: 1,
    priority: 0,
    paged_out_bytes: 0,
    busy: false,
    group: '',
    idle_seconds: null,
    idle_step: '',
    gang: [],
    why: [],
    squeezed_bytes: 0,
    slowdown: 1,
    curve: null,
    remaining_seconds: null,
    expected_wait_is_bound: false,
    loop_iterations: null,
    iteration_seconds: null,
    squeezing: null,
    ...changes
  };
}

export const running = session({
  state: 'running',
  reason: 'runs',
  why: [{ code: 'runs' }]
});
/** It has had no turn yet. */
export const waiting = session({
  device_seconds: 0,
  iterations: 0,
  id: 'b',
  name: 'bob.ipynb',
  user: 'bob',
  pid: 2,
  state: 'waiting',
  position: 1,
  waiting_seconds: 58,
  expected_wait_seconds: 10,
  reason: 'waits for lab/alice.ipynb',
  why: [{ code: 'waits_for', other: 'a' }]
});

export function resting(changes: Partial<IRestingView> = {}): IRestingView {
  return {
    id: 'r',
    name: 'lab/rose.ipynb',
    user: 'rose',
    pid: 3,
    paged_out_bytes: 3 * GIB,
    idle_seconds: 7500,
    idle_step: 'release',
    ...changes
  };
}

export function turn(changes: Partial<ITurnView> = {}): ITurnView {
  return { session: 'a', lane: 1, began: 20, ended: 10, held: 10, ...changes };
}

export function device(
  sessions: ISessionView[],
  changes: Partial<IDeviceView> = {}
): IDeviceView {
  return {
    name: 'host',
    capacity_bytes: 16 * GIB,
    persistent_bytes: 4 * GIB,
    free_bytes: 9 * GIB,
    unmanaged_bytes: GIB,
    running_lanes: 1,
    finding_sentence: '',
    finding: null,
    lanes: [
      {
        id: 1,
        bytes: 2 * GIB,
        holder: 'a',
        members: sessions.map(({ id }) => id),
        beside: null,
        width_bytes: 0
      }
    ],
    sessions,
    resting: [],
    turns: [turn({ began: 12, ended: null, held: 12 })],
    users: [
      { name: 'alice', used_seconds: [30, 60] },
      { name: 'bob', used_seconds: [0, 30] }
    ],
    ...changes
  };
}

export function snapshot(...sessions: ISessionView[]): ISnapshot {
  return snapshotOf(device(sessions));
}

export function snapshotOf(...devices: IDeviceView[]): ISnapshot {
  return {
    type: 'Snapshot',
    version: VERSION,
    broker: {
      pid: 1,
      protocol: 1,
      started: 0,
      accounts: '',
      recovering: false
    },
    policy: 'fair',
    policies: [
      { name: 'fair', sentence: 'equal time to each user' },
      { name: 'fifo', sentence: 'first come, first served' },
      { name: 'las', sentence: 'least time so far first' }
    ],
    sequence: 1,
    devices,
    interventions: [],
    groups: [],
    classes: [],
    reservations: [],
    rulebook_error: '',
    names: {},
    causes: {}
  };
}

export function viewer(changes: Partial<IViewer> = {}): IViewer {
  return {
    type: 'Viewer',
    user: 'alice',
    is_administrator: false,
    may_change: true,
    kernels: {},
    sees_processes: false,
    ...changes
  };
}

/** Let the page be seen, or be hidden as behind another tab. */
export function showPage(visible: boolean) {
  Object.defineProperty(document, 'hidden', {
    configurable: true,
    value: !visible
  });
  document.dispatchEvent(new Event('visibilitychange'));
}
