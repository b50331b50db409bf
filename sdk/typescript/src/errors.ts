import { BaseError, RpcRequestError } from 'viem'

/** An error that the node has answered. The cause is viem's own error. */
export class PresimError extends BaseError {
  override name = 'PresimError'
  /** The code of JSON-RPC, such as -32000. */
  readonly code: number
  /** The data of the error, if the node sent any, such as the data of a revert. */
  readonly data: unknown

  constructor(method: string, cause: Error, answer: RpcRequestError) {
    super(`${method} was rejected: ${answer.details}`, { cause })
    this.code = answer.code
    this.data = answer.data
  }
}

/** Returns an error of viem as a `PresimError` if the node has answered it, and otherwise as it is. */
export function toPresimError(method: string, error: unknown): unknown {
  if (!(error instanceof BaseError)) return error
  const answer = error.walk((cause) => cause instanceof RpcRequestError)
  return answer instanceof RpcRequestError ? new PresimError(method, error, answer) : error
}
