/** Figures and sentences for people; pure. */

import { IError, ISessionView, ISnapshot } from './snapshot';

/** What we ask of a translator; JupyterLab's TranslationBundle is one. */
export interface ITranslate {
  __(text: string, ...values: (string | number)[]): string;
  _n(one: string, many: string, n: number): string;
}

/** No translation, for where JupyterLab is not. */
export const english: ITranslate = {
  __: (text, ...values) =>
    text.replace(/%(\d)/g, (_, place) => String(values[Number(place) - 1])),
  _n: (one, many, n) => (n === 1 ? one : many).replace('%1', String(n))
};

/** What is known: a snapshot, why there is none, or nothing yet. */
export type State = ISnapshot | IError | null;

export function isSnapshot(state: State): state is ISnapshot {
  return state !== null && 'devices' in state;
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

/** Three figures and a binary unit: `1.50 GiB`. */
export function bytes(count: number): string {
  let unit = 0;
  // 999.5 would be rounded to four figures
  while (count >= 999.5 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || count >= 99.95 ? 0 : count >= 9.995 ? 1 : 2;
  return `${count.toFixed(digits)} ${UNITS[unit]}`;
}

/** `0:07`, `12:30`, `1:02:03`. */
export function clock(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const pad = (n: number) => String(n).padStart(2, '0');
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  const head = hours > 0 ? `${hours}:${pad(minutes)}` : String(minutes);
  return `${head}:${pad(whole % 60)}`;
}

/** The last part of a notebook's path; the tooltip has all of it. */
export function fileName(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1) || path;
}

/** The word for a session's state. */
export function stateName(session: ISessionView, trans: ITranslate): string {
  switch (session.state) {
    case 'running':
      return trans.__('running');
    case 'overdue':
      return trans.__('overdue');
    case 'waiting':
      return trans.__('waiting');
    case 'paused':
      return trans.__('paused');
    case 'paged_out':
      return trans.__('paged out');
    case 'idle':
      return trans.__('idle');
  }
}

const ORDER = ['overdue', 'running', 'waiting', 'idle', 'paused', 'paged_out'];

/** Who runs, then the queue in its order, then the others by name. */
export function inOrder(sessions: ISessionView[]): ISessionView[] {
  return [...sessions].sort(
    (a, b) =>
      ORDER.indexOf(a.state) - ORDER.indexOf(b.state) ||
      (a.place ?? 0) - (b.place ?? 0) ||
      a.name.localeCompare(b.name)
  );
}

/** For the status bar: `GPU: 2 running, 1 waits`. */
export function summary(state: State, trans: ITranslate): string {
  if (!isSnapshot(state)) {
    return state === null ? trans.__('GPU: …') : trans.__('GPU: broker away');
  }
  const states = state.devices.flatMap(device =>
    device.sessions.map(session => session.state)
  );
  const waiting = states.filter(name => name === 'waiting').length;
  const running = states.filter(
    name => name === 'running' || name === 'overdue'
  ).length;
  if (running + waiting === 0) {
    return trans.__('GPU: free');
  }
  const runs = trans.__('GPU: %1 running', running);
  return waiting === 0
    ? runs
    : `${runs}, ${trans._n('%1 waits', '%1 wait', waiting)}`;
}
