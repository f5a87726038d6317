/** One AG-UI stream: the protocol client's transport and checks, our own fold.
 *
 * `HttpAgent` reads the frames, checks each against the schema and their order against the protocol. Its last stage,
 * the reducer, is replaced: the page shows more than AG-UI messages carry (delivery, ledger), and one pass over a
 * long conversation for each piece of text would be too dear. */

import { HttpAgent, type BaseEvent, type Message, type RunAgentInput } from "@ag-ui/client";
import { EmptyError, map, of, tap, type Observable } from "rxjs";
import { joinUrl, request, runUrl } from "./api";

export type StreamEvent = BaseEvent & Record<string, unknown>;

export interface StreamRequest {
  agent: string;
  threadId: string;
  runId: string;
  /** The client's copy of the conversation: starts the run. Absent: the run is joined from its start. */
  messages?: Message[];
  resume?: RunAgentInput["resume"];
}

/** How a connection ended. Only `terminal` says anything about the run. */
export type StreamEnd = { kind: "terminal" } | { kind: "aborted" } | { kind: "lost"; error: unknown };

/** The response with a body that ends where it breaks off: the same to us, since neither is an end of the run. (The
 * protocol client cancels a broken body once more and leaves that rejection to nobody.) */
function unbreaking(response: Response): Response {
  const reader = response.body!.getReader();
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { done, value } = await reader.read().catch(() => ({ done: true as const, value: undefined }));
      if (done) controller.close();
      else controller.enqueue(value);
    },
    cancel: (reason) => reader.cancel(reason).catch(() => undefined),
  });
  return new Response(body, { status: response.status, headers: response.headers });
}

/** A clean close without a terminal event: proves nothing. */
export class Unended extends Error {
  constructor() {
    super("The stream closed before the run had ended.");
  }
}

class RunStream extends HttpAgent {
  failure: unknown = new Unended();

  constructor(
    private readonly asked: StreamRequest,
    private readonly onEvent: (event: StreamEvent) => void,
  ) {
    super({
      url: asked.messages ? runUrl(asked.agent) : joinUrl(asked.agent, asked.runId),
      agentId: asked.agent,
      threadId: asked.threadId,
      initialMessages: asked.messages ?? [],
      fetch: async (url, init) => unbreaking(await request(url, init)),
    });
  }

  protected override requestInit(input: RunAgentInput): RequestInit {
    if (this.asked.messages) return super.requestInit(input);
    return { headers: { Accept: "text/event-stream" }, signal: this.abortController.signal };
  }

  /** Told to the caller, who decides: not logged, not thrown. */
  protected override onError(_input: RunAgentInput, error: Error) {
    this.failure = error;
    return of({});
  }

  protected override apply(_input: RunAgentInput, events$: Observable<BaseEvent>) {
    return events$.pipe(
      tap((event) => this.onEvent(event as StreamEvent)),
      map(() => ({})),
    );
  }
}

/** Reads one stream to its end. Never raises. */
export async function readStream(
  asked: StreamRequest,
  onEvent: (event: StreamEvent) => void,
  abortController: AbortController,
): Promise<StreamEnd> {
  const { signal } = abortController;
  let terminal = false;
  const stream = new RunStream(asked, (event) => {
    if (signal.aborted) return;
    // `abort` is the transport's own word for a closed connection, not the server's for the run.
    if (event.type === "RUN_ERROR" && event["code"] === "abort") return;
    terminal ||= event.type === "RUN_FINISHED" || event.type === "RUN_ERROR";
    onEvent(event);
  });
  try {
    await stream.runAgent({ runId: asked.runId, abortController, ...(asked.resume ? { resume: asked.resume } : {}) });
  } catch (error) {
    if (!(error instanceof EmptyError)) stream.failure = error;
  }
  if (signal.aborted) return { kind: "aborted" };
  return terminal ? { kind: "terminal" } : { kind: "lost", error: stream.failure };
}
