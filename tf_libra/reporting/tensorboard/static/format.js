// Number formats, the same as those of tf_libra/internal/formatting.py; a test compares the two.

const NONE = '-';
/** Result of interleaved trials whose difference may be noise. */
export const NO_DIFFERENCE = 'no significant difference';
// Confidence limits that allow almost any ratio.
const UNDETERMINED = 'undetermined, too few steps';
// Upper limit over lower limit of a ratio, from which the limits state nothing.
const WIDEST = 100;
const TIMES = [['us', 1e6], ['ms', 1e3], ['s', 1]];
const BYTES = [['B', 1], ['kB', 1e-3], ['MB', 1e-6], ['GB', 1e-9]];

// Four significant digits, at most three decimals.
function rounded(value) {
  return Number(Number(value.toPrecision(4)).toFixed(3));
}

function scaled(value, units) {
  const positive = Math.abs(value);
  for (const [unit, factor] of units) {
    const number = rounded(positive * factor);
    if (number < 1000 || unit === units.at(-1)[0]) return `${value < 0 && number > 0 ? '-' : ''}${number} ${unit}`;
  }
  return NONE;
}

/** Seconds in us, ms or s; a dash for null. */
export function time(seconds) {
  return seconds === null || seconds === undefined ? NONE : scaled(seconds, TIMES);
}

/** Round steps for an axis of length `span` with about `count` ticks. */
export function tickStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9)) ?? 10);
}

/** Label of a tick on an axis up to `most`, with the digits that ticks `step` apart need. */
export function tick(seconds, step, most) {
  const [unit, factor] = TIMES.find(([, one]) => most * one < 1000) ?? TIMES.at(-1);
  const decimals = Math.max(-Math.floor(Math.log10(step * factor) + 1e-9), 0);
  return `${(seconds * factor).toFixed(Math.min(decimals, 6))} ${unit}`;
}

/** A change in seconds, with its sign. */
export function difference(seconds) {
  if (seconds === null || seconds === undefined) return 'not possible';
  if (rounded(Math.abs(seconds) * 1e6) === 0) return 'no change';
  return `${seconds > 0 ? '+' : '-'}${time(Math.abs(seconds))}`;
}

export function bytes(count) {
  return count === null || count === undefined ? NONE : scaled(count, BYTES);
}

export function rate(bytesPerSecond) {
  return bytesPerSecond === null || bytesPerSecond === undefined ? NONE : `${bytes(bytesPerSecond)}/s`;
}

/** A share, such as 0.125, in per cent. */
export function percent(share, digits = 1) {
  return share === null || share === undefined ? NONE : `${(share * 100).toFixed(digits)} %`;
}

/** A relative change, such as -0.125, in per cent with its sign. */
export function signedPercent(share, digits = 1) {
  if (share === null || share === undefined) return NONE;
  const text = (Math.abs(share) * 100).toFixed(digits);
  const sign = Number(text) === 0 ? '' : share > 0 ? '+' : '-';
  return `${sign}${text} %`;
}

/** Confidence limits of a ratio as changes. */
export function limits(low, high) {
  return high > WIDEST * low ? UNDETERMINED : `${signedPercent(low - 1)} to ${signedPercent(high - 1)}`;
}

/** Step of a plan in interleaved trials, relative to the active plan's; the latter has index 0. */
export function trialStep(trial, index) {
  if (index === 0) return time(trial.seconds);
  return trial.ratio === null ? NONE : signedPercent(trial.ratio - 1);
}

/** Confidence limits of `trialStep`. */
export function trialLimits(trial) {
  return trial.ratio === null ? NONE : limits(trial.low, trial.high);
}

/** Result of a plan in interleaved trials against the active plan, which has index 0. */
export function verdict(trial, index) {
  if (index === 0) return 'active';
  if (trial.ratio === null) return NONE;
  if (trial.is_noise) return NO_DIFFERENCE;
  return trial.ratio > 1 ? 'slower' : 'faster';
}

// Origins of plans, by their value in records.
const ORIGINS = {made: 'tuned', kept: 'cached', given: 'user-provided'};

export function origin(value) {
  return ORIGINS[value] ?? value;
}

export function plural(count, noun) {
  return `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;
}

/** A name shortened to `length`; the whole name belongs in a tooltip. */
export function short(name, length = 60) {
  const flat = name.replace(/\s+/g, ' ');
  if (flat.length <= length) return flat;
  const head = Math.ceil(length / 3);
  return `${flat.slice(0, head)}…${flat.slice(head - length)}`;
}

// Spellings of the papers; other strategies have their registered name.
const SPELLED = {
  'syneasgd': 'SynEASGD',
  'wfbp': 'WFBP',
  'horovod-fusion': 'Horovod fusion',
  'mg-wfbp': 'MG-WFBP',
  'asc-wfbp': 'ASC-WFBP',
  'aiacc': 'AIACC',
  'dear': 'DeAR',
  'libra-m': 'LIBRA-M',
  'libra': 'LIBRA',
  'mg-cf': 'MG-CF (no contention)',
};

export function strategy(name) {
  return Object.hasOwn(SPELLED, name) ? SPELLED[name] : short(name, 40);
}
