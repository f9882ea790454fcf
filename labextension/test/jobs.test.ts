import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { IJobs } from '../src/view/jobs';
import { ACTIVE_MS, JobsModel, QUIET_MS } from '../src/lab/jobs_model';
import { IClusterView, IJobView, INodeView } from '../src/state/snapshot';
import { snapshot } from './states';
import { all, newPage, node, press, texts, view } from './view/looks';

const job = (fields: Partial<IJobView> = {}): IJobView => ({
  type: 'JobView',
  id: 'train-1',
  user: 'ada',
  state: 'running',
  position: null,
  sentence: 'runs on n0',
  line: 'runs on n0',
  gpus: 2,
  nodes: 0,
  place: { n0: 2 },
  directory: '/jobs/train-1',
  generation: 1,
  iteration: null,
  iterations: null,
  computed: 64,
  submitted: 0,
  first: 1,
  ended: null,
  yields: 0,
  losses: 0,
  ...fields
});
const node0: INodeView = {
  name: 'n0',
  gpus: 4,
  shards: 0,
  used: 3,
  ours: 2,
  alive: true,
  reason: ''
};
const cluster = (fields: Partial<IClusterView> = {}): IClusterView => ({
  type: 'ClusterView',
  cluster: 'c1',
  pid: 1,
  jobs: [job()],
  nodes: [node0],
  trouble: '',
  ...fields
});

let known: IJobs;

const figures = (of: 'job' | 'node') =>
  texts(`.jp-GpuShare-${of} .jp-GpuShare-figure`);

function show(shown: IClusterView | null, fields: Partial<IJobs> = {}) {
  known = {
    cluster: shown,
    logs: new Map(),
    trouble: '',
    cancel: vi.fn(async () => undefined),
    ...fields
  };
  view.update({ state: snapshot(), receivedAt: 0, jobs: known });
}

beforeEach(() => {
  newPage();
  vi.useFakeTimers({ now: 33_000, toFake: ['Date'] });
});

afterEach(() => {
  vi.useRealTimers();
});

describe('the section of jobs', () => {
  it('is not there for a viewer that has submitted none', () => {
    show(null);
    expect(node.querySelector('.jp-GpuShare-jobs')).toBeNull();
    show(cluster({ cluster: '', jobs: [], nodes: [] }));
    expect(node.querySelector('.jp-GpuShare-jobs')).toBeNull();
    view.update({ state: snapshot(), receivedAt: 0 });
    expect(node.querySelector('.jp-GpuShare-jobs')).toBeNull();
  });

  it('says what each job does, in order, and how many run and wait', () => {
    const waiting = job({
      id: 'b',
      state: 'queued',
      line: 'waits',
      computed: 0,
      first: null
    });
    show(cluster({ jobs: [job(), waiting] }));
    expect(texts('.jp-GpuShare-jobs .jp-GpuShare-headline')).toEqual([
      '1 running, 1 waiting.'
    ]);
    expect(texts('.jp-GpuShare-job .jp-GpuShare-reason')).toEqual([
      'runs on n0',
      'waits'
    ]);
    expect(figures('job')).toEqual(['2 GPUs · 32 s', '2 GPUs']);
    const [figure] = all<HTMLElement>('.jp-GpuShare-job .jp-GpuShare-figure');
    expect(figure.title).toBe('GPU time 64 s');
  });

  it('says of a failed job the error, and for how long it ran', () => {
    const sentence =
      'it exited with status 1: Traceback (most recent call last):\n  line\r100 %\nNameError: x\n\n';
    const line = 'it exited with status 1: NameError: x';
    const failed = job({ state: 'failed', ended: 11, sentence, line });
    show(cluster({ jobs: [failed] }));
    const [reason] = all<HTMLElement>('.jp-GpuShare-job .jp-GpuShare-reason');
    expect(reason.textContent).toBe(line);
    expect(reason.title).toBe(sentence);
    expect(figures('job')).toEqual(['2 GPUs · 10 s']);
  });

  it('says which part of a GPU a job wants', () => {
    show(cluster({ jobs: [job({ gpus: 0.25, first: null })] }));
    expect(figures('job')).toEqual(['0.25 of a GPU']);
  });

  it('draws the GPUs of a node that jobs have, that others have, and free ones', () => {
    show(cluster());
    const kinds = all('.jp-GpuShare-gpus i').map(({ className }) => className);
    expect(kinds).toEqual(['jp-mod-ours', 'jp-mod-ours', 'jp-mod-others', '']);
    expect(figures('node')).toEqual(['3 of 4 GPUs used']);
  });

  it('draws the part of a GPU that is used', () => {
    const half = { ...node0, gpus: 1, shards: 4, used: 0.75, ours: 0.5 };
    show(cluster({ nodes: [half] }));
    const parts = all<HTMLElement>('.jp-GpuShare-gpus i');
    expect(parts.map(({ style }) => style.flexGrow)).toEqual([
      '0.5',
      '0.25',
      '0.25'
    ]);
    expect(figures('node')).toEqual(['0.75 of 1 GPU used']);
  });

  it('draws a bar where a node has many GPUs, and none for one that is away or has none', () => {
    show(cluster({ nodes: [{ ...node0, gpus: 512, used: 100, ours: 0 }] }));
    expect(node.querySelectorAll('.jp-GpuShare-gpus i')).toHaveLength(3);
    const away = { ...node0, alive: false, reason: 'drained by root' };
    const host = {
      ...node0,
      name: 'here',
      gpus: 0,
      used: 0,
      ours: 0,
      reason: 'has no GPU'
    };
    show(cluster({ nodes: [away, host] }));
    expect(node.querySelectorAll('.jp-GpuShare-gpus i')).toHaveLength(0);
    expect(figures('node')).toEqual(['drained by root', 'has no GPU']);
  });

  it('shows the newest jobs that have ended, and all on demand', () => {
    const over = ['a', 'b', 'c', 'd', 'e'].map(id =>
      job({ id, state: 'done', ended: 5, sentence: `${id} is done` })
    );
    show(cluster({ jobs: over }));
    expect(texts('.jp-GpuShare-headline')).toContain('No job waits or runs.');
    expect(texts('.jp-GpuShare-jobName')).toEqual(['e', 'd', 'c']);
    press('Show all 5 jobs');
    expect(texts('.jp-GpuShare-jobName')).toEqual(['e', 'd', 'c', 'b', 'a']);
    press('Show fewer');
    expect(texts('.jp-GpuShare-jobName')).toEqual(['e', 'd', 'c']);
    expect(texts('button')).not.toContain('Cancel…');
  });

  it('offers to log and cancel a job only to those that may', () => {
    const own = job();
    const other = job({ id: 'b', user: 'bob', directory: '' });
    show(cluster({ jobs: [own, other, { ...other, id: 'c', ended: 2 }] }));
    expect(texts('.jp-GpuShare-jobName')).toEqual(['train-1', 'b', 'c']);
    expect(texts('.jp-GpuShare-job button')).toEqual(['Log', 'Cancel…']);
  });

  it('stays while the broker is away, and says why it is old', () => {
    const state = { type: 'Error' as const, code: 'unavailable', message: 'x' };
    show(cluster());
    view.update({ state, receivedAt: 0, jobs: known });
    expect(texts('.jp-GpuShare-jobName')).toEqual(['train-1']);
    show(cluster(), { trouble: 'The service of jobs did not answer.' });
    expect(texts('.jp-GpuShare-jobs .jp-GpuShare-notice')).toEqual([
      'The service of jobs did not answer.'
    ]);
  });

  it('asks twice before it cancels', async () => {
    show(cluster());
    press('Cancel…');
    press('Keep it');
    press('Cancel…');
    expect(known.cancel).not.toHaveBeenCalled();
    press('Cancel the job');
    expect(known.cancel).toHaveBeenCalledExactlyOnceWith('train-1');
    await vi.waitFor(() =>
      expect(texts('.jp-GpuShare-notice')).toEqual(['train-1 is cancelled.'])
    );
  });

  it('shows a log as text, and what is missing of it', () => {
    show(cluster());
    press('Log');
    expect(texts('.jp-GpuShare-log pre')).toEqual(['…']);
    const text = '<b>loss</b> 0.5\n';
    show(cluster(), { logs: new Map([['train-1', { text, is_cut: true }]]) });
    expect(texts('.jp-GpuShare-log pre')).toEqual([text]);
    expect(texts('.jp-GpuShare-log p')).toEqual([
      'Earlier lines are left out.'
    ]);
    show(cluster(), {
      logs: new Map([['train-1', { text: '', is_cut: false }]])
    });
    expect(texts('.jp-GpuShare-log pre')).toEqual(['It has printed nothing.']);
    press('Log');
    expect(node.querySelector('.jp-GpuShare-log')).toBeNull();
  });
});

describe('the model of jobs', () => {
  const asked: string[] = [];
  let answers: Record<string, unknown>;
  let model: JobsModel;
  const closed = () => false;
  const settled = () => new Promise(resolve => setTimeout(resolve));

  beforeEach(() => {
    asked.length = 0;
    answers = { 'jobs?all=true': cluster() };
    model = new JobsModel(async (path, init) => {
      asked.push(`${init.method ?? 'GET'} ${path}`);
      const answer = answers[path];
      return answer
        ? Response.json(answer)
        : Response.json({ message: `no ${path}` }, { status: 404 });
    });
  });

  it('looks often while a job is not over, and seldom else', async () => {
    for (const now of [0, ACTIVE_MS - 1, ACTIVE_MS]) {
      model.tick(now, closed);
      await settled();
    }
    expect(asked).toHaveLength(2);
    answers['jobs?all=true'] = cluster({ jobs: [] });
    for (const now of [
      2 * ACTIVE_MS,
      3 * ACTIVE_MS,
      2 * ACTIVE_MS + QUIET_MS
    ]) {
      model.tick(now, closed);
      await settled();
    }
    expect(asked).toHaveLength(4);
  });

  it('reads the logs that are shown, a new one at once', async () => {
    model.tick(0, closed);
    await settled();
    answers['jobs/train-1/log'] = { text: 'begun', is_cut: false };
    model.tick(1, name => name === 'log of train-1');
    await settled();
    expect(asked.slice(1)).toEqual([
      'GET jobs?all=true',
      'GET jobs/train-1/log'
    ]);
    expect(model.logs.get('train-1')?.text).toBe('begun');
  });

  it('shows the other logs where one is refused, and asks no more often', async () => {
    const jobs = [job(), job({ id: 'b' })];
    answers['jobs?all=true'] = cluster({ jobs });
    answers['jobs/train-1/log'] = { text: 'begun', is_cut: false };
    for (const now of [0, 1, 2]) {
      model.tick(now, () => true);
      await settled();
    }
    expect(model.logs.get('train-1')?.text).toBe('begun');
    expect(model.logs.get('b')?.text).toBe('no jobs/b/log');
    expect(model.trouble).toBe('');
    expect(asked.filter(one => one.endsWith('train-1/log'))).toHaveLength(1);
  });

  it('keeps what it knows when a look fails, and says so', async () => {
    model.tick(0, closed);
    await settled();
    answers = {};
    model.tick(ACTIVE_MS, closed);
    await settled();
    expect(model.trouble).toBe('no jobs?all=true');
    expect(model.cluster?.jobs).toHaveLength(1);
  });

  it('cancels, tells a refusal, and looks at once', async () => {
    model.tick(0, closed);
    await settled();
    await expect(model.cancel('a b')).rejects.toThrow('no jobs/a%20b/asks');
    answers['jobs/train-1/asks'] = job({ state: 'ending' });
    await model.cancel('train-1');
    expect(asked.at(-1)).toBe('POST jobs/train-1/asks');
    model.tick(1, closed);
    await settled();
    expect(asked.at(-1)).toBe('GET jobs?all=true');
  });
});
