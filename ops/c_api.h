// C interface for Python (ctypes): starts and ends the engine, exchanges messages between ranks,
// and reads telemetry. Functions return 0, or a StatusCode with the reason in TfLibraLastError.
// Returned texts live until the same thread calls again.
#ifndef TF_LIBRA_OPS_C_API_H_
#define TF_LIBRA_OPS_C_API_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

const char* TfLibraLastError();

// The numeric address of a network interface, IPv4 where it has one, else IPv6.
int TfLibraInterfaceAddress(const char* interface_name, const char** host);

// Starts to listen on `host` alone ("unix:" for a Unix socket), at a port from `first_port` to
// `last_port`. If both are 0, the system chooses the port. `bound_host` and `port` receive the
// address. The listener waits in this process until TfLibraConnect takes it. `is_additional` other
// than 0 makes it an additional listener, for the ranks of this host when other ranks are on other
// hosts.
int TfLibraListen(const char* host, int first_port, int last_port, int is_additional,
                  const char** bound_host, int* port);

// Connects to all ranks with `num_lanes` lanes and puts the engine in place. `hosts` and `ports`
// have `world_size` entries, `secret` has 64 bytes. Blocks for `timeout_seconds` at most.
// `machines` has equal texts for ranks that reach each other by Unix sockets, and `local_hosts` has
// the additional Unix address at which each rank listens ("" for none); both may be null. If any
// machine is "", hosts are not known, and the ranks connect as if none were.
int TfLibraConnect(int rank, int world_size, const char* const* hosts, const int* ports,
                   const char* const* machines, const char* const* local_hosts,
                   const uint8_t* secret, int num_lanes, double timeout_seconds,
                   double stall_warning_seconds, double liveness_seconds);

// Connects more lanes of the running engine, `num_lanes` in all: on every rank, after
// TfLibraListen, at the same place among messages. Ranks and `secret` as for TfLibraConnect, with
// newly made values.
int TfLibraGrow(const char* const* hosts, const int* ports, const char* const* machines,
                const char* const* local_hosts, const uint8_t* secret, int num_lanes);

// The running engine's rank, world size, ranks on each host (0: not known, or hosts differ) and
// number of lanes; FailedPrecondition where none runs.
int TfLibraEngineInfo(int* rank, int* world_size, int* ranks_per_host, int* num_lanes);

// Every rank's message, in a buffer of 8-byte little-endian lengths and bytes, rank by rank.
int TfLibraAllGather(const char* message, int64_t num_bytes, const char** all,
                     int64_t* all_num_bytes);

// Rank 0's message.
int TfLibraBroadcast(const char* message, int64_t num_bytes, const char** received,
                     int64_t* received_num_bytes);

// Waits at most `seconds` for a one-sided receive of another rank; `peer` is -1 if there was none.
int TfLibraAwaitRead(double seconds, int* peer, const char** name);

// Sets the step number of later telemetry and messages.
int TfLibraSetStep(int64_t step);

// Whether this rank leaves blocks of zeros out of what it sends: 1, as at the start, or 0.
// FailedPrecondition where no engine runs.
int TfLibraOmitZeros(int omits_zeros);

// Returns the first of the elements of a tensor that `rank` owns among `world_size`; those of the
// rank before end there. Needs no engine.
int64_t TfLibraOwnedBegin(int64_t num_elements, int world_size, int rank);

// JSON, see TelemetryJson. Takes the records away.
int TfLibraDrainTelemetry(const char** json);

// Returns the number of tensors that the all-reduces of a training function received since the last
// TfLibraTakeExecuted; needs no engine.
int64_t TfLibraNumExecuted(const char* function);

// Returns how often each of them was executed, as JSON {"name": times}, and restarts the counts
// from 0; `json` may be null.
int TfLibraTakeExecuted(const char* function, const char** json);

// Waits for the weights that are gathered in the background. Returns why a gather has failed since
// the engine started. DeadlineExceeded: none has ended for `seconds`. Needs no engine.
int TfLibraAwaitGathers(double seconds);

// The next eight are about sharded updates, and need no engine. A step is complete when its weights
// are gathered.
//
// Ends the updates of a step, or of several, when a call has ended well.
int TfLibraEndCall();

// Keeps the updates of a step that is not complete.
int TfLibraKeepChanges();

// Waits until each step whose updates have all been made is complete. Returns whether they are: 0
// if one has failed, or after `seconds`.
int TfLibraAwaitSteps(double seconds);

// Keeps all steps that are not complete from completing: another rank has undone them.
int TfLibraFailSteps();

// Undoes the updates of all steps that are not complete. No step may be running. Weights that are
// still gathered are undone when that has ended.
int TfLibraUndoSteps();

// The number of complete steps of this engine.
int64_t TfLibraNumCompleteSteps();

// The number of steps that are complete, or not undone.
int64_t TfLibraNumBegunSteps();

// Frees memory that the next step would use again.
int TfLibraFreeSpares();

// The seconds that this thread needs to round a byte of float32 to `wire_dtype`, "float16" or
// "bfloat16", and back, with error feedback if it is not 0; needs no engine.
int TfLibraRoundingSeconds(const char* wire_dtype, int error_feedback, double* seconds);

// The rounding errors of a training function that wait to be sent, as TfLibraAllGather's buffer of
// lengths and bytes: of each tensor its name and its float32 elements. Needs no engine, as the next
// two; no step of the function may be running.
int TfLibraCopyErrorFeedback(const char* function, const char** packed, int64_t* num_bytes);

// Sets those of one tensor.
int TfLibraSetErrorFeedback(const char* function, const char* tensor, const float* errors,
                            int64_t count);

// Restarts from zero.
int TfLibraClearErrorFeedback(const char* function);

// Tells the peers why this rank gives up and ends all work; the engine stays, failed.
int TfLibraAbort(const char* reason);

// Ends the engine and joins its threads; `why` is sent to the peers that go on. No-op if no engine
// runs. DeadlineExceeded if a callback at the end of an all-reduce does not return: its thread is
// left behind.
int TfLibraClose(const char* why);

// From here on Horovod executes the requests of LibraAllReduce, unless an engine runs.
int TfLibraStartHorovod(int rank, int world_size);

// Every LibraAllReduce by Horovod ends with this reason, or the first that was given.
int TfLibraFailHorovod(const char* reason);

// Horovod executes nothing for us any more.
int TfLibraStopHorovod();

#ifdef __cplusplus
}
#endif

#endif  // TF_LIBRA_OPS_C_API_H_
