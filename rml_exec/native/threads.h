// The process-wide pool of worker threads. All threads of a run walk the same program and meet at barriers (SPMD); there is no queue.
#ifndef RML_THREADS_H
#define RML_THREADS_H

enum { RML_MAX_THREADS = 256 };

typedef struct rml_team rml_team;

// Calls walk(data, team, thread, threads) on up to `threads` threads, the caller being thread 0, and returns when all have come back. Fewer
// while other runs are under way: what they use is taken off. When another run has the pool, or threads cannot be started, the caller walks
// alone: walk(data, team, 0, 1).
void rml_run_team(int threads, void (*walk)(void *data, rml_team *team, int thread, int threads), void *data);

// Waits until every thread of the team has arrived. What they wrote before is visible after.
void rml_barrier(rml_team *team, int threads);
#endif
