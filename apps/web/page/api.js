// @ts-check
// What the page asks the server. The token, where there is one, comes in the address once and stays in this tab.

const from_address = new URLSearchParams(location.search).get("token");
if (from_address) {
  sessionStorage.setItem("token", from_address);
  history.replaceState(null, "", location.pathname + location.hash);
}

/** @returns {Record<string, string>} */
export function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: "Bearer " + token } : {};
}

/**
 * @param {string} path
 * @param {object} [body]  absent: GET
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function ask(path, body, signal) {
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers: { ...headers(), "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });
  const answer = await response.json();
  if (!response.ok) throw new Refusal(answer.error?.message ?? response.statusText, answer.error?.type ?? "");
  return answer;
}

/** An answer of the server that says why not. */
export class Refusal extends Error {
  /** @param {string} message @param {string} type */
  constructor(message, type) {
    super(message);
    this.type = type;
  }
}
