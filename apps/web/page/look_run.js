// @ts-check
// One pass of a model over a text: what it answered, and what may be asked of it afterwards.
import { ask, Refusal } from "./api.js";

/**
 * @typedef {{kind: string, layer: number, head: number}} Head
 * @typedef {{at: number, weight: number, text: string}} Peak
 * @typedef {{step: number, values: number[], best: Peak[]}} Profile
 */

/** "self.2.1" and back. @param {Head} head */
export const name_of = (head) => `${head.kind}.${head.layer}.${head.head}`;
/** @param {string} name @returns {[string, number, number]} */
export function place_of(name) {
  const [kind, layer, head] = name.split(".");
  return [kind, Number(layer), Number(head)];
}

export class Run {
  /** @param {{prompt: string, model?: number, off?: [string, number, number][]}} body */
  constructor(body) {
    this.body = body;
    /** @type {any} */
    this.answer = null;
  }

  /** @param {AbortSignal} [signal] */
  async look(signal) {
    this.answer = await ask("/api/look", this.body, signal);
    return this.answer;
  }

  /**
   * The server keeps a few texts only: one that it has forgotten is looked at again.
   * @param {string} part  map, cell, lens
   * @param {object} body
   * @param {AbortSignal} [signal]
   */
  async ask(part, body, signal) {
    const once = () => ask("/api/look/" + part, { ...body, text: this.answer.text }, signal);
    try {
      return await once();
    } catch (error) {
      if (!(error instanceof Refusal) || error.type !== "text_gone") throw error;
      await this.look();
      return once();
    }
  }

  /** Token texts of rows and columns. @param {string} kind @returns {{rows: string[], columns: string[]}} */
  texts(kind) {
    const rows = kind === "self" || kind === "encoder" ? this.answer.texts : this.answer.target;
    return { rows, columns: kind === "cross" ? this.answer.texts : rows };
  }
}
