/** States as a server sends them, for the tests. */

import { ISessionView, ISnapshot } from '../src/snapshot';

export function session(changes: Partial<ISessionView> = {}): ISessionView {
  return {
    id: 'a',
    name: 'alice.ipynb',
    user: 'alice',
    pid: 1,
    state: 'idle',
    persistent_bytes: 1 << 30,
    ephemeral_bytes: 1 << 29,
    measured: true,
    lane: 0,
    place: null,
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
    ...changes
  };
}

export const running = session({ state: 'running' });
export const waiting = session({
  id: 'b',
  name: 'bob.ipynb',
  state: 'waiting',
  place: 1,
  waiting_seconds: 58,
  expected_wait_seconds: 10,
  reason: 'alice.ipynb has the lane'
});

export function snapshot(...sessions: ISessionView[]): ISnapshot {
  return {
    type: 'Snapshot',
    version: '0.1.0',
    broker: { pid: 1, protocol: 1, started: 0 },
    policy: 'fair',
    policies: [],
    sequence: 1,
    devices: [
      {
        name: 'host',
        capacity_bytes: 16 * 2 ** 30,
        persistent_bytes: 4 * 2 ** 30,
        free_bytes: 10 * 2 ** 30,
        foreign_bytes: 0,
        running_lanes: 1,
        lanes: [
          {
            id: 0,
            bytes: 2 * 2 ** 30,
            holder: 'a',
            members: sessions.map(({ id }) => id)
          }
        ],
        sessions
      }
    ]
  };
}
