// Numbers as a person reads them. What a run has not measured is a dash.

const NONE = '–';

function significant(value, digits) {
  if (value === 0) return '0';
  const decimals = Math.max(digits - 1 - Math.floor(Math.log10(Math.abs(value))), 0);
  return value.toFixed(Math.min(decimals, 12));
}

/** Seconds in ms, with the digits that `explain` prints. */
export function time(seconds, digits = 4) {
  if (seconds === null || seconds === undefined) return NONE;
  return `${Number((seconds * 1e3).toPrecision(digits))} ms`;
}

/** A difference in seconds, with its sign. */
export function difference(seconds) {
  if (seconds === null || seconds === undefined) return 'not possible';
  if (seconds === 0) return '±0 ms';
  return `${seconds > 0 ? '+' : '−'}${time(Math.abs(seconds))}`;
}

export function bytes(count) {
  if (count === null || count === undefined) return NONE;
  for (const [unit, size] of [['GB', 1e9], ['MB', 1e6], ['kB', 1e3]]) {
    if (count >= size) return `${significant(count / size, 4)} ${unit}`;
  }
  return `${count} B`;
}

export function rate(bytesPerSecond) {
  return bytesPerSecond === null ? NONE : `${bytes(Math.round(bytesPerSecond))}/s`;
}

/** A share, such as 0.125, in per cent. */
export function percent(share, digits = 1) {
  return share === null || share === undefined ? NONE : `${(share * 100).toFixed(digits)} %`;
}

export function signedPercent(share, digits = 1) {
  if (share === null || share === undefined) return NONE;
  const text = (Math.abs(share) * 100).toFixed(digits);
  if (Number(text) === 0) return `±${text} %`;
  return `${share > 0 ? '+' : '−'}${text} %`;
}

export function plural(count, noun) {
  return `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;
}

/** A name that fits; the whole of it belongs in a tooltip. */
export function short(name, length = 60) {
  const flat = name.replace(/\s+/g, ' ');
  if (flat.length <= length) return flat;
  const head = Math.ceil(length / 3);
  return `${flat.slice(0, head)}…${flat.slice(head - length)}`;
}

export const STRATEGIES = {
  'syneasgd': 'SynEASGD',
  'wfbp': 'WFBP',
  'horovod-fusion': 'Horovod fusion',
  'mg-wfbp': 'MG-WFBP',
  'asc-wfbp': 'ASC-WFBP',
  'aiacc': 'AIACC',
  'libra-m': 'LIBRA-M',
  'libra': 'LIBRA',
  'mg-cf': 'MG-CF (no contention)',
};

export function strategy(name) {
  return Object.hasOwn(STRATEGIES, name) ? STRATEGIES[name] : short(name, 40);
}
