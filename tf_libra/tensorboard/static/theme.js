// Light or dark, as TensorBoard is; where that cannot be seen, as the system is.

const system = window.matchMedia('(prefers-color-scheme: dark)');
const listeners = [];

function host() {
  try {
    return window.parent === window ? null : window.parent.document.body;
  } catch {
    return null; // embedded by a page of another origin
  }
}

function apply() {
  const body = host();
  const dark = body === null ? system.matches : body.classList.contains('dark-mode');
  const before = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  if (before !== undefined && before !== document.documentElement.dataset.theme) {
    for (const listener of listeners) listener();
  }
}

export function followTheme(onchange) {
  listeners.push(onchange);
  apply();
  const body = host();
  if (body === null) system.addEventListener('change', apply);
  else new MutationObserver(apply).observe(body, {attributeFilter: ['class']});
}

/** The value of one of the style sheet's custom properties. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
