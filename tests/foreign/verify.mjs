// The reference verifier over many streams: JSON lists of events on stdin, for each whether it is legal, and why not.
import { readFileSync } from "node:fs";
import { from, lastValueFrom, toArray } from "rxjs";

const { transformChunks, verifyEvents } = await import("@ag-ui/client");

const judge = async (events) => {
  try {
    await lastValueFrom(from(events).pipe(transformChunks(false), verifyEvents(false), toArray()));
    return { legal: true };
  } catch (error) {
    return { legal: false, why: String(error.message ?? error) };
  }
};

const out = [];
for (const events of JSON.parse(readFileSync(0, "utf8"))) out.push(await judge(events));
process.stdout.write(JSON.stringify(out));
