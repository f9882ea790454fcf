// Written by snapshot_types.py from wire/snapshot.py; change it there.

export const VERSION = '0.1.0';

export interface IBrokerView {
  pid: number;
  protocol: number;
  started: number;
  accounts: string;
  recovering: boolean;
}

export interface IClassView {
  group: string;
  device: string;
  ends: number | null;
}

export interface IClusterView {
  type: 'ClusterView';
  cluster: string;
  pid: number;
  jobs: IJobView[];
  nodes: INodeView[];
  trouble: string;
}

export interface ICurve {
  seconds: number;
  peak_bytes: number;
  percent: number[];
}

export interface IDeviceView {
  name: string;
  capacity_bytes: number;
  persistent_bytes: number;
  free_bytes: number;
  unmanaged_bytes: number;
  running_lanes: number;
  finding_sentence: string;
  lanes: ILaneView[];
  sessions: ISessionView[];
  resting: IRestingView[];
  turns: ITurnView[];
  users: IUserView[];
  finding: IReason | null;
}

export interface IError {
  type: 'Error';
  code: string;
  message: string;
  is_answer?: boolean;
}

export interface IGroupView {
  name: string;
  weight: number;
  teachers: string[];
}

export interface IIntervention {
  session: string;
  action: string;
  sentence: string;
}

export interface IJobLog {
  text: string;
  is_cut: boolean;
}

export interface IJobView {
  type: 'JobView';
  id: string;
  user: string;
  state: 'cancelled' | 'done' | 'ending' | 'failed' | 'queued' | 'running' | 'starting' | 'yielding';
  sentence: string;
  line: string;
  position: number | null;
  gpus: number;
  nodes: number;
  place: Record<string, number>;
  directory: string;
  generation: number;
  iteration: number | null;
  iterations: number | null;
  computed: number;
  submitted: number;
  first: number | null;
  ended: number | null;
  yields: number;
  losses: number;
}

export interface ILaneView {
  id: number;
  bytes: number;
  holder: string | null;
  members: string[];
  beside: string | null;
  width_bytes: number;
}

export interface INodeView {
  name: string;
  gpus: number;
  shards: number;
  used: number;
  ours: number;
  alive: boolean;
  reason: string;
}

export interface IPolicyView {
  name: string;
  sentence: string;
}

export interface IReason {
  code: string;
  other?: string;
  bytes?: number;
  free?: number;
  count?: number;
  percent?: number;
  device?: string;
  text?: string;
  whole?: number;
  who?: string;
  rule?: string;
  seconds?: number;
  until?: number;
}

export interface IReservationView {
  group: string;
  device: string;
  share: number;
  begins: number;
  ends: number;
  is_on: boolean;
}

export interface IRestingView {
  id: string;
  name: string;
  user: string;
  pid: number;
  paged_out_bytes: number;
  idle_seconds: number;
  idle_step: string;
}

export interface ISessionView {
  id: string;
  name: string;
  user: string;
  pid: number;
  state: 'idle' | 'overdue' | 'paged_out' | 'paused' | 'running' | 'throttled' | 'waiting';
  persistent_bytes: number;
  ephemeral_bytes: number;
  measured: boolean;
  lane: number | null;
  position: number | null;
  waiting_seconds: number | null;
  expected_wait_seconds: number | null;
  reason: string;
  device_seconds: number;
  waited_seconds: number;
  iterations: number;
  remaining_iterations: number | null;
  weight: number;
  priority: number;
  paged_out_bytes: number;
  busy: boolean;
  group: string;
  idle_seconds: number | null;
  idle_step: string;
  gang: string[];
  why: IReason[];
  squeezed_bytes: number;
  slowdown: number;
  curve: ICurve | null;
  remaining_seconds: number | null;
  expected_wait_is_bound: boolean;
  loop_iterations: number | null;
  iteration_seconds: number | null;
  squeezing: ISqueezing | null;
}

export interface ISnapshot {
  type: 'Snapshot';
  version: string;
  broker: IBrokerView;
  policy: string;
  policies: IPolicyView[];
  sequence: number;
  devices: IDeviceView[];
  interventions: IIntervention[];
  groups: IGroupView[];
  classes: IClassView[];
  reservations: IReservationView[];
  rulebook_error: string;
  names: Record<string, string>;
  causes: Record<string, string>;
}

export interface ISqueezing {
  asked_bytes: number | null;
  reached_bytes: number | null;
  floor_bytes: number | null;
  whole_bytes: number | null;
  slowdown: number | null;
  written_bytes: number;
}

export interface ITurnView {
  session: string;
  lane: number;
  began: number;
  ended: number | null;
  held: number;
}

export interface IUserView {
  name: string;
  used_seconds: number[];
}

export interface IViewer {
  type: 'Viewer';
  user: string;
  is_administrator: boolean;
  may_change: boolean;
  kernels: Record<string, number>;
  sees_processes: boolean;
}
