/** Sentences about notebooks and devices; pure. */

import { QUICK_SECONDS, arranged, runs, takers, turnOf, waits } from './queue';
import { ITranslate, clock, lasting, shortened } from './format';
import {
  COMING_BACK,
  DISCONNECTED,
  Notebook,
  RECOVERING,
  State,
  gang,
  isBusy,
  isRefusal,
  isSnapshot,
  notebooksOn,
  rests,
  stateOf
} from './notebook';
import { IDeviceView, IError, ISessionView } from './snapshot';

const NEXT_SECONDS = 1; // a shorter expected wait reads `next`
const SOON_SECONDS = 10; // a finish time below has passed before a person has read it

export function atOnce(session: ISessionView, trans: ITranslate): string {
  return trans.__('%1 at once', gang(session).join(', '));
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

/** A sign for each state, which differs from the others without colour, too. */
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
 * A sentence that says for how long nothing has run, and what was done about
 * it; empty if nothing was done yet.
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

/** When it has done what it has declared: `in about 6 min at its present share`. */
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
 * The status bar's text if no notebook is in front: `▶ host: 2 running, 1
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
 * A notebook's devices and state in a few words, after a sign that needs no colour: `▶ cuda:0:
 * running`. Null is a notebook that does not share; undefined means that this is not known yet.
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
  const there = state.devices.filter(device =>
    notebooksOn(device).some(({ id }) => id === notebook.id)
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

/** The time for which it has been running; null unless it is known to be long. */
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
  if (isRefusal(state)) {
    return trans.__('✕ broker refuses');
  }
  const words: Record<string, string> = {
    [DISCONNECTED]: trans.__('✕ server is away'),
    [RECOVERING]: trans.__('… notebooks come back')
  };
  return words[state.code] ?? trans.__('✕ broker is away');
}
