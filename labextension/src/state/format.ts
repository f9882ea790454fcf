/** Figures and sentences for people; pure. */

import { arranged, QUICK_SECONDS, runs, takers, turnOf, waits } from './queue';
import {
  IDeviceView,
  IError,
  IRestingView,
  ISessionView,
  ISnapshot,
  IViewer
} from './snapshot';

/**
 * The methods of a translator that are used here; JupyterLab's
 * TranslationBundle is one.
 */
export interface ITranslate {
  __(text: string, ...values: (string | number)[]): string;
  /** `%1` is the number, and the others follow. */
  _n(one: string, many: string, n: number, ...values: number[]): string;
}

/** No translation, for pages without JupyterLab. */
export const english: ITranslate = {
  __: (text, ...values) =>
    text.replace(/%(\d)/g, (_, place) => String(values[Number(place) - 1])),
  _n: (one, many, n, ...values) =>
    english.__(n === 1 ? one : many, n, ...values)
};

/** A snapshot, or the error that says why there is none, or nothing yet. */
export type State = ISnapshot | IError | null;

/**
 * A notebook that shares: on a device, or released from it until its next cell.
 */
export type Notebook = ISessionView | IRestingView;

/** Code of the Error that a page tells itself while its own connection is lost. */
export const DISCONNECTED = 'disconnected';

/**
 * Code of the Error for a broker to which the notebooks have not come back yet.
 */
export const RECOVERING = 'recovering';

export const COMING_BACK: IError = {
  type: 'Error',
  code: RECOVERING,
  message: ''
};

export function isSnapshot(state: State): state is ISnapshot {
  return state !== null && 'devices' in state;
}

/** What people read for these figures, everywhere: the table of format.py. */
export function labels(
  trans: ITranslate
): Record<'persistent' | 'ephemeral' | 'unmanaged' | 'position', string> {
  return {
    persistent: trans.__('model and data'),
    ephemeral: trans.__('working memory'),
    unmanaged: trans.__('unmanaged memory'),
    position: trans.__('queue position')
  };
}

/** The label at the beginning of a line. */
export function title(label: string): string {
  return label.slice(0, 1).toUpperCase() + label.slice(1);
}

const LONGEST_NAME = 36; // characters, in a sentence
const NEXT_SECONDS = 1; // a shorter expected wait reads `next`
const SOON_SECONDS = 10; // a finish time below has passed before a person has read it
const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

/** One to four digits and a binary unit: `1.5 GiB`. Halves go up, as in format.py. */
export function bytes(count: number): string {
  let unit = 0;
  while (count >= 1000 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  const figure =
    unit === 0 || count >= 100
      ? String(Math.floor(count + 0.5))
      : (Math.floor(10 * count + 0.5) / 10).toFixed(1);
  return `${figure} ${UNITS[unit]}`;
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

/** `45 s`, `2 min 30 s`, `12 min`, `2 h 5 min`, as format.duration in Python. */
export function lasting(seconds: number, trans: ITranslate): string {
  if (seconds < 120) {
    return trans.__('%1 s', Math.floor(seconds));
  }
  const minutes = Math.floor(seconds / 60);
  if (minutes < 10) {
    return trans.__('%1 min %2 s', minutes, Math.floor(seconds % 60));
  }
  return minutes < 60
    ? trans.__('%1 min', minutes)
    : trans.__('%1 h %2 min', Math.floor(minutes / 60), minutes % 60);
}

/**
 * The last part of the path of a notebook or script; the tooltip has all of it. Any other name was
 * given by hand, and a slash in it is no folder's.
 */
export function fileName(path: string): string {
  return /\.(ipynb|py)$/.test(path)
    ? path.slice(path.lastIndexOf('/') + 1)
    : path;
}

/** The same where there is little space: it is clear that it is a notebook. */
export function stem(name: string): string {
  return name.replace(/(.)\.ipynb$/, '$1');
}

/**
 * Notebooks that are released until their next cell; an older broker knows of
 * none.
 */
export function resting(device: IDeviceView): IRestingView[] {
  return device.resting ?? [];
}

/** All notebooks of all devices; one that has several devices is there for each. */
export function everyone({ devices }: ISnapshot): Notebook[] {
  return devices.flatMap(device => [...device.sessions, ...resting(device)]);
}

/**
 * The devices of a notebook that has several at once; an older broker knows of
 * none.
 */
export function gang(session: ISessionView): string[] {
  return session.gang ?? [];
}

export function atOnce(session: ISessionView, trans: ITranslate): string {
  return trans.__('%1 at once', gang(session).join(', '));
}

export function rests(notebook: Notebook): notebook is IRestingView {
  return !('state' in notebook);
}

export function stateOf(notebook: Notebook): string {
  return rests(notebook) ? 'resting' : notebook.state;
}

/** Whether its cell runs, and needs no turn now. */
function isBusy(notebook: Notebook): boolean {
  return !rests(notebook) && notebook.busy && notebook.state === 'idle';
}

/** The word for a notebook's state; a newer broker may know states that we do not. */
export function stateName(notebook: Notebook, trans: ITranslate): string {
  const state = stateOf(notebook);
  const names: Record<string, string> = {
    running: trans.__('running'),
    overdue: trans.__('overdue'),
    waiting: trans.__('waiting'),
    throttled: trans.__('throttled'),
    paused: trans.__('paused'),
    paged_out: trans.__('paged out'),
    idle: trans.__('idle'),
    resting: trans.__('resting')
  };
  return isBusy(notebook) ? trans.__('busy') : (names[state] ?? state);
}

/** A sign for each state; it can be told from the others without colour. */
export function sign(notebook: Notebook): string {
  const signs: Record<string, string> = {
    running: '▶',
    overdue: '!',
    throttled: '⊘',
    paused: 'Ⅱ',
    paged_out: '↓',
    resting: '☾'
  };
  return rests(notebook) || notebook.position === null
    ? (signs[stateOf(notebook)] ?? '○')
    : String(notebook.position);
}

/**
 * For how long nothing has run, and what was done about it; empty where nothing
 * was done yet.
 */
export function idleFor(notebook: Notebook, trans: ITranslate): string {
  const { idle_seconds, idle_step } = notebook;
  if (idle_seconds === null || !idle_step) {
    return '';
  }
  const steps: Record<string, string> = {
    caches: trans.__('gave back its caches'),
    page_out: trans.__('was asked to page out'),
    release: rests(notebook)
      ? trans.__('released the device to others')
      : trans.__('was asked to release the device to others'),
    cull: trans.__('its kernel is to be shut down')
  };
  const time = trans.__('idle for %1', lasting(idle_seconds, trans));
  return idle_step in steps ? `${time}; ${steps[idle_step]}` : time;
}

/** The sign of notebooks whose state changes faster than a person reads. */
export const QUICK_SIGN = '⇄';

/**
 * A name for a sentence: a long one is shortened to its beginning and its end.
 */
function shortened(name: string): string {
  return name.length <= LONGEST_NAME
    ? name
    : `${name.slice(0, LONGEST_NAME - 12)}…${name.slice(-11)}`;
}

/**
 * The device in one or two sentences: which notebooks run, which one is next,
 * and when. A notebook that comes back to a recovering broker between two turns
 * has not asked for the next one yet, so the device may not be called idle.
 */
export function headline(
  device: IDeviceView,
  nameOf: (notebook: Notebook) => string,
  trans: ITranslate,
  recovering: boolean
): string {
  const { running, taking, queue } = arranged(device);
  if (running.length + taking.length + queue.length === 0) {
    if (recovering) {
      return trans.__('Which notebooks run or wait is not known yet.');
    }
    return device.sessions.some(isBusy)
      ? trans.__('Free. No cell that runs needs a turn now.')
      : trans.__('Idle. No notebook is running or waiting.');
  }
  const names = (sessions: ISessionView[]) =>
    sessions.map(one => shortened(nameOf(one)));
  const parts = [
    running.length > 0 || taking.length === 0
      ? whatRuns(running, names(running), device, trans)
      : '',
    taking.length > 0 ? whatTakesTurns(names(taking), trans) : ''
  ];
  if (queue.length > 0) {
    const count = trans.__('%1 waiting', queue.length);
    const next = whatIsNext(queue[0], names(queue)[0], trans);
    parts.push(next ? `${count}; ${next}.` : `${count}.`);
  } else if (device.sessions.length > 0 && taking.length === 0) {
    parts.push(trans.__('No notebook is waiting.'));
  }
  return parts.filter(Boolean).join(' ');
}

function whatRuns(
  running: ISessionView[],
  names: string[],
  device: IDeviceView,
  trans: ITranslate
): string {
  switch (running.length) {
    case 0:
      return trans.__('No notebook is running.');
    case 1:
      return running[0].state === 'overdue'
        ? trans.__('%1 is overdue.', names[0])
        : whatOneRuns(running[0], names[0], device, trans);
    case 2:
      return trans.__('%1 and %2 are running.', names[0], names[1]);
    default:
      return trans.__(
        '%1 and %2 others are running.',
        names[0],
        names.length - 1
      );
  }
}

/** A young turn may be over before a person has read how long it has lasted. */
function whatOneRuns(
  session: ISessionView,
  name: string,
  device: IDeviceView,
  trans: ITranslate
): string {
  const held = turnOf(session, device)?.held ?? 0;
  return held < QUICK_SECONDS
    ? trans.__('%1 is running.', name)
    : trans.__('%1 has been running for %2.', name, lasting(held, trans));
}

function whatTakesTurns(names: string[], trans: ITranslate): string {
  const [first, second, ...others] = names;
  switch (others.length) {
    case 0:
      return trans.__('%1 and %2 take turns.', first, second);
    case 1:
      return trans.__('%1, %2 and %3 take turns.', first, second, others[0]);
    default:
      return trans.__(
        '%1, %2 and %3 others take turns.',
        first,
        second,
        others.length
      );
  }
}

/** Empty where those that take turns have the first positions of the queue. */
function whatIsNext(
  session: ISessionView,
  name: string,
  trans: ITranslate
): string {
  return session.position === 1
    ? [trans.__('%1 is next', name), expected(session, trans)]
        .filter(Boolean)
        .join(', ')
    : '';
}

/** The end of a sentence: nothing where it is within a second. */
function expected(session: ISessionView, trans: ITranslate): string {
  return wait(session, {
    unknown: trans.__('after an unknown wait'),
    next: '',
    bound: time => trans.__('in at most %1', time),
    about: time => trans.__('in about %1', time)
  });
}

/** The same in a column. */
export function expectedShort(
  session: ISessionView,
  trans: ITranslate
): string {
  return waits(session)
    ? wait(session, {
        unknown: trans.__('unknown'),
        next: trans.__('next'),
        bound: time => trans.__('at most %1', time),
        about: time => trans.__('≈ %1', time)
      })
    : '';
}

interface IWords {
  unknown: string;
  next: string;
  bound: (time: string) => string;
  about: (time: string) => string;
}

/** An expected wait in these words, by the rule of format.py. */
function wait(
  { expected_wait_seconds, expected_wait_is_bound }: ISessionView,
  words: IWords
): string {
  if (expected_wait_seconds === null) {
    return words.unknown;
  }
  if (expected_wait_seconds < NEXT_SECONDS) {
    return words.next;
  }
  const time = clock(expected_wait_seconds);
  return expected_wait_is_bound ? words.bound(time) : words.about(time);
}

/**
 * The time until it has done what it declared: `in about 6 min at its present
 * share`.
 */
export function finish(
  { remaining_seconds }: ISessionView,
  trans: ITranslate
): string {
  return remaining_seconds === null
    ? trans.__('unknown')
    : trans.__(
        'in about %1 at its present share',
        lasting(Math.max(1, remaining_seconds), trans)
      );
}

/**
 * The same in a row, `1928 iterations left, about 6 min`; empty where it has
 * declared nothing, or will be done before a person has read it.
 */
export function progress(session: ISessionView, trans: ITranslate): string {
  const left = session.remaining_iterations;
  const seconds = session.remaining_seconds ?? null;
  if (!left || !session.busy || isSoon(seconds)) {
    return '';
  }
  return seconds === null
    ? trans.__('%1 iterations left', left)
    : trans.__('%1 iterations left, about %2', left, lasting(seconds, trans));
}

function isSoon(seconds: number | null): boolean {
  return seconds !== null && seconds < SOON_SECONDS;
}

/**
 * For the status bar, where no notebook is in front: `▶ host: 2 running, 1
 * waiting`. The device is named where it is the only one.
 */
export function summary(state: State, trans: ITranslate): string {
  if (!isSnapshot(state)) {
    return away(state, trans);
  }
  const there = state.devices.flatMap(device => device.sessions);
  const count = (is: (session: ISessionView) => boolean) =>
    new Set(there.filter(is).map(({ id }) => id)).size;
  const running = count(runs);
  const waiting = count(waits);
  const [device, ...others] = state.devices;
  const isOne = device !== undefined && others.length === 0;
  if (running + waiting === 0) {
    if (state.broker.recovering) {
      return away(COMING_BACK, trans);
    }
    return isOne
      ? trans.__('○ %1 is free', device.name)
      : trans.__('○ nothing runs');
  }
  const parts = [trans.__('%1 running', running)];
  if (waiting > 0) {
    parts.push(trans.__('%1 waiting', waiting));
  }
  return `▶ ${isOne ? `${device.name}: ` : ''}${parts.join(', ')}`;
}

/**
 * A notebook's devices and state in a few words, after a sign that needs no
 * colour: `▶ cuda:0: running`. Null is a notebook that does not share; for an
 * undefined one that is not known yet.
 */
export function inThreeWords(
  state: State,
  notebook: Notebook | null | undefined,
  trans: ITranslate
): string {
  if (!isSnapshot(state)) {
    return away(state, trans);
  }
  if (notebook === undefined) {
    return trans.__('… GPU sharing: not known yet');
  }
  if (notebook === null) {
    return trans.__('◌ GPU sharing: off');
  }
  const there = state.devices.filter(({ sessions, resting }) =>
    [...sessions, ...(resting ?? [])].some(({ id }) => id === notebook.id)
  );
  const names = there.map(({ name }) => name).join(', ');
  const [mark, words] = markAndWords(there, notebook, trans);
  return `${mark} ${names}: ${words}${timeLeft(notebook, trans)}`;
}

/** `, about 6 min left`; empty where it is not known, or soon over. */
function timeLeft(notebook: Notebook, trans: ITranslate): string {
  const seconds = rests(notebook) ? null : (notebook.remaining_seconds ?? null);
  return seconds === null || isSoon(seconds)
    ? ''
    : `, ${trans.__('about %1 left', lasting(seconds, trans))}`;
}

function markAndWords(
  devices: IDeviceView[],
  notebook: Notebook,
  trans: ITranslate
): [string, string] {
  if (devices.some(device => takers(device).has(notebook.id))) {
    return ['▶', trans.__('takes turns')];
  }
  if (!rests(notebook) && waits(notebook)) {
    return ['◔', trans.__('queue position %1', notebook.position!)];
  }
  return [
    sign(notebook),
    runningLong(devices, notebook, trans) ?? stateName(notebook, trans)
  ];
}

/**
 * How long it has been running, in words; null unless it is known to be long.
 */
function runningLong(
  devices: IDeviceView[],
  notebook: Notebook,
  trans: ITranslate
): string | null {
  if (rests(notebook) || notebook.state !== 'running') {
    return null;
  }
  const held = devices.map(device => turnOf(notebook, device)?.held ?? 0);
  const longest = Math.max(...held);
  return longest < QUICK_SECONDS
    ? null
    : trans.__('running for %1', lasting(longest, trans));
}

function away(state: IError | null, trans: ITranslate): string {
  if (state === null) {
    return trans.__('… looking for broker');
  }
  const words: Record<string, string> = {
    [DISCONNECTED]: trans.__('✕ server is away'),
    [RECOVERING]: trans.__('… notebooks come back')
  };
  return words[state.code] ?? trans.__('✕ broker is away');
}

/** The notebook of a kernel: by its process, else by the notebook's name. */
export function ofKernel(
  state: State,
  viewer: IViewer | null,
  kernel: string,
  path: string
): Notebook | null {
  if (!isSnapshot(state)) {
    return null;
  }
  const pid = viewer?.kernels[kernel];
  const is =
    pid === undefined
      ? ({ name, user }: Notebook) =>
          name === fileName(path) && user === viewer?.user
      : (notebook: Notebook) => notebook.pid === pid;
  return everyone(state).find(is) ?? null;
}

/** Whether the viewer may change this session. */
export function isOwn(viewer: IViewer | null, session: ISessionView): boolean {
  return (
    viewer !== null &&
    viewer.may_change &&
    (viewer.is_administrator || viewer.user === session.user)
  );
}

/** Whether the viewer may begin classes of a group and set weights of its notebooks. */
export function teaches(
  viewer: IViewer | null,
  { groups }: ISnapshot,
  group: string
): boolean {
  const found = (groups ?? []).find(({ name }) => name === group);
  return (
    viewer !== null &&
    viewer.may_change &&
    found !== undefined &&
    (viewer.is_administrator || found.teachers.includes(viewer.user))
  );
}

/** Unix time as a day and a time of the page: `Tue 10:00`. */
export function moment(unix: number): string {
  return new Date(1000 * unix).toLocaleString([], {
    weekday: 'short',
    hour: '2-digit',
    minute: '2-digit'
  });
}

/** Unix time as a time of day of the page: `10:00`. */
export function timeOfDay(unix: number): string {
  return new Date(1000 * unix).toLocaleTimeString([], {
    hour: '2-digit',
    minute: '2-digit',
    hourCycle: 'h23'
  });
}

/** Whether the viewer may choose the policy. */
export function isAdmin(viewer: IViewer | null): boolean {
  return viewer !== null && viewer.may_change && viewer.is_administrator;
}
