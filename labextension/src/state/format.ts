/** Figures and names for people; pure. */

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

/** The labels of these figures for people; format.py has the same table. */
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

/** The name without `.ipynb`, for little space, where it is clear that this is a notebook. */
export function stem(name: string): string {
  return name.replace(/(.)\.ipynb$/, '$1');
}

/**
 * A name for a sentence: a long one is shortened to its beginning and its end.
 */
export function shortened(name: string): string {
  return name.length <= LONGEST_NAME
    ? name
    : `${name.slice(0, LONGEST_NAME - 12)}…${name.slice(-11)}`;
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
