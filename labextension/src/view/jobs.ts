/** Jobs of the viewer on a cluster, their logs, and the GPUs of its nodes. */

import { button, Child, div, h, INode, note, trouble } from './dom';
import { lasting } from '../state/format';
import { IControls } from './view_model';
import { IClusterView, IJobLog, IJobView, INodeView } from '../state/snapshot';

/** The known jobs, and the actions on a job. */
export interface IJobs {
  /** Null before the server has answered. */
  cluster: IClusterView | null;
  /** The logs that are shown, by the id of their job. */
  logs: ReadonlyMap<string, IJobLog>;
  /** Why the last request failed; empty if it did not. */
  trouble: string;
  cancel(id: string): Promise<void>;
}

const SHOWN_ENDED = 3;
const MOST_CELLS = 16; // of a strip, one for each GPU; above it is a bar
const ALL_ENDED = 'all ended jobs';

/** The name under which the viewer opens the log of this job. */
export function logName(id: string): string {
  return `log of ${id}`;
}

/** Null for a viewer that has never submitted a job. */
export function jobs(known: IJobs | null, controls: IControls): Child {
  const cluster = known?.cluster ?? null;
  if (known === null || cluster === null || cluster.cluster === '') {
    return null;
  }
  const { trans } = controls;
  const present = cluster.jobs.filter(isPresent);
  return div(
    'section',
    'jobs',
    { key: 'jobs', 'aria-label': trans.__('Jobs') },
    h('h2', {}, trans.__('Jobs')),
    div('p', 'headline', {}, headline(present, controls)),
    trouble(known.trouble || cluster.trouble, 'trouble'),
    h('ul', {}, ...cluster.nodes.map(node => nodeOf(node, controls))),
    h('ul', {}, ...present.map(job => jobOf(job, known, controls))),
    ...ended(known, controls)
  );
}

/** Whether a job is not over. */
export function isPresent({ ended }: IJobView): boolean {
  return ended === null;
}

function headline(present: IJobView[], { trans }: IControls): string {
  const waiting = present.filter(({ state }) => state === 'queued').length;
  const running = present.length - waiting;
  if (present.length === 0) {
    return trans.__('No job waits or runs.');
  }
  return waiting === 0
    ? trans._n('%1 job runs.', '%1 jobs run.', running)
    : trans.__('%1 running, %2 waiting.', running, waiting);
}

// --- nodes ---

function nodeOf(node: INodeView, { trans }: IControls): INode {
  const others = Math.max(0, node.used - node.ours);
  const hasGpus = node.alive && (node.gpus > 0 || !node.reason);
  const said = hasGpus
    ? trans._n(
        '%2 of %1 GPU used',
        '%2 of %1 GPUs used',
        node.gpus,
        Math.min(node.gpus, node.used)
      )
    : node.reason || trans.__('does not answer');
  return div(
    'li',
    'node',
    { key: node.name },
    div('span', 'userName', { title: node.name }, node.name),
    hasGpus ? strip(node.ours, others, node.gpus) : null,
    div(
      'span',
      'figure',
      { title: trans.__('%1 of jobs, %2 of others', node.ours, others) },
      said
    )
  );
}

/** One part for each GPU, or where there are many one for all of a kind. */
function strip(ours: number, others: number, gpus: number): INode {
  const free = Math.max(0, gpus - ours - others);
  const kinds: [string, number][] = [
    ['jp-mod-ours', ours],
    ['jp-mod-others', others],
    ['', free]
  ];
  const parts = kinds.flatMap(([kind, count]) =>
    gpus <= MOST_CELLS ? cells(kind, count) : [part(kind, count)]
  );
  return div('span', 'gpus', { 'aria-hidden': 'true' }, ...parts);
}

/** One for each whole GPU, and a narrower one for a part of one. */
function cells(kind: string, count: number): INode[] {
  const whole = Math.floor(count);
  const rest = count - whole;
  return [
    ...Array.from({ length: whole }, () => part(kind, 1)),
    ...(rest > 0.001 ? [part(kind, rest)] : [])
  ];
}

function part(kind: string, count: number): INode {
  return h('i', { class: kind, style: `flex-grow: ${count}` });
}

// --- jobs ---

function ended(known: IJobs, controls: IControls): Child[] {
  const { trans, isOpen, toggle } = controls;
  const over = known.cluster!.jobs.filter(job => !isPresent(job)).reverse();
  const shown = isOpen(ALL_ENDED) ? over : over.slice(0, SHOWN_ENDED);
  if (over.length === 0) {
    return [];
  }
  return [
    h('h3', { key: 'ended' }, trans.__('Ended')),
    h('ul', { key: 'over' }, ...shown.map(job => jobOf(job, known, controls))),
    over.length > SHOWN_ENDED
      ? button(
          isOpen(ALL_ENDED)
            ? trans.__('Show fewer')
            : trans.__('Show all %1 jobs', over.length),
          () => toggle(ALL_ENDED),
          { key: 'more', 'aria-expanded': `${isOpen(ALL_ENDED)}` }
        )
      : null
  ];
}

function jobOf(job: IJobView, known: IJobs, controls: IControls): INode {
  const { isOpen } = controls;
  return div(
    'li',
    `job jp-mod-${job.state}`,
    { key: job.id },
    div('span', 'jobName', { title: job.directory }, job.id),
    div(
      'span',
      'figure',
      { title: gpuTime(job, controls) },
      size(job, controls)
    ),
    div('p', 'reason', { title: job.sentence }, job.line),
    isForViewer(job)
      ? div(
          'span',
          'buttons',
          {},
          logButton(job, controls),
          ...(isPresent(job) ? cancelButtons(job, known, controls) : [])
        )
      : null,
    isOpen(logName(job.id)) ? log(job, known, controls) : null
  );
}

/** The service names the directory of a job to those that may act on it. */
function isForViewer({ directory }: IJobView): boolean {
  return directory !== '';
}

/** `2 GPUs · 1 h 4 min`, the time since it began first, until its end. */
function size({ gpus, first, ended }: IJobView, { trans }: IControls): string {
  const wanted =
    gpus < 1
      ? trans.__('%1 of a GPU', gpus)
      : trans._n('%1 GPU', '%1 GPUs', gpus);
  if (first === null) {
    return wanted;
  }
  // the clocks of the cluster and of this page may differ
  const elapsed = Math.max(0, (ended ?? Date.now() / 1000) - first);
  return `${wanted} · ${lasting(elapsed, trans)}`;
}

/** The time on all of its GPUs together. */
function gpuTime({ computed }: IJobView, { trans }: IControls): string | null {
  return computed > 0
    ? trans.__('GPU time %1', lasting(computed, trans))
    : null;
}

function logButton(
  { id }: IJobView,
  { trans, isOpen, toggle }: IControls
): INode {
  return button(trans.__('Log'), () => toggle(logName(id)), {
    'aria-expanded': `${isOpen(logName(id))}`,
    'aria-label': trans.__('Log of %1', id)
  });
}

/** Asks for confirmation, since the work after the job's last save is lost. */
function cancelButtons(
  { id }: IJobView,
  known: IJobs,
  { trans, choice, choose, act }: IControls
): Child[] {
  const name = `cancel ${id}`;
  if (choice(name) === null) {
    const label = trans.__('Cancel %1…', id);
    return [
      button(trans.__('Cancel…'), () => choose(name, 'asked'), {
        key: 'ask',
        'aria-label': label
      })
    ];
  }
  const cancel = () => {
    choose(name, null);
    act(known.cancel(id), trans.__('%1 is cancelled.', id));
  };
  return [
    button(trans.__('Cancel the job'), cancel, { key: 'cancel' }),
    button(trans.__('Keep it'), () => choose(name, null), { key: 'keep' })
  ];
}

/** It stays at its end while it grows, unless the viewer has scrolled up. */
function log({ id }: IJobView, { logs }: IJobs, { trans }: IControls): INode {
  const label = trans.__('Log of %1', id);
  const known = logs.get(id);
  const none = known ? trans.__('It has printed nothing.') : '…';
  return div(
    'div',
    'log',
    { key: `log ${id}`, tabindex: 0, role: 'region', 'aria-label': label },
    h('pre', {}, known?.text || none),
    known?.is_cut ? note(trans.__('Earlier lines are left out.')) : null
  );
}
