// Waiting: a thread spins, from 20 us on it offers its core at every turn (sched_yield: the kernel may have woken the awaited thread on
// this very core, which otherwise runs only at the next scheduler tick), and from 100 us on it sleeps in a futex. Where fewer cores than
// threads are allowed to us, it sleeps at once. Measurements behind these numbers: README.md.
#define _GNU_SOURCE
#include "threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OWN_LINE _Alignas(128)  // two cache lines: the prefetcher fetches them in pairs

enum { SPIN_NS = 100000, YIELD_NS = 20000, LOOKS_PER_CLOCK = 32, TEAM_BITS = 9 };

// A counter that threads wait on.
typedef struct signal_word {
  OWN_LINE atomic_uint value;
  OWN_LINE atomic_uint sleepers;
} signal_word;

struct rml_team {
  OWN_LINE atomic_uint arrived;
  signal_word released;
  // The run: its number above TEAM_BITS bits that hold its thread count, so that a worker which oversleeps a run that it has no part in
  // cannot mix up the number of one run with the thread count of another.
  signal_word run;
  void (*walk)(void *, rml_team *, int, int);
  void *data;
  atomic_int caller_cpu;
  atomic_int spin;  // 0: fewer cores than threads
};

static struct {
  atomic_flag taken;
  atomic_int busy;  // threads that all runs use now
  int workers;
  unsigned seen[RML_MAX_THREADS];  // by worker: the run that was the last when the worker was started
  rml_team team;
} pool = {.taken = ATOMIC_FLAG_INIT};

static int may_spin(rml_team *team) { return atomic_load_explicit(&team->spin, memory_order_relaxed); }

static void pause_core(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void futex(atomic_uint *word, int operation, unsigned value) { syscall(SYS_futex, word, operation, value, 0, 0, 0); }

// Returns the word's value once it differs from old.
static unsigned wait_change(signal_word *word, unsigned old, int spin) {
  unsigned value;
  int64_t begin = 0;
  for (unsigned looks = 1; spin; looks++) {
    if ((value = atomic_load_explicit(&word->value, memory_order_acquire)) != old) return value;
    pause_core();
    if (looks % LOOKS_PER_CLOCK) continue;
    int64_t now = now_ns();
    if (!begin) begin = now;
    if (now - begin > SPIN_NS) break;
    if (now - begin > YIELD_NS) sched_yield();
  }
  // Sequentially consistent on both sides: either the sleeper sees the new value, or the waker sees the sleeper.
  atomic_fetch_add(&word->sleepers, 1);
  while ((value = atomic_load(&word->value)) == old) futex(&word->value, FUTEX_WAIT_PRIVATE, old);
  atomic_fetch_sub(&word->sleepers, 1);
  return value;
}

static void signal_change(signal_word *word, unsigned value) {
  atomic_store(&word->value, value);
  if (atomic_load(&word->sleepers)) futex(&word->value, FUTEX_WAKE_PRIVATE, RML_MAX_THREADS);
}

void rml_barrier(rml_team *team, int threads) {
  if (threads == 1) return;
  unsigned old = atomic_load_explicit(&team->released.value, memory_order_relaxed);
  if ((int)atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == threads) {
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    signal_change(&team->released, old + 1);
  } else {
    wait_change(&team->released, old, may_spin(team));
  }
}

// A worker that finds itself on the caller's core would only run when the caller sleeps: it leaves that core.
static void leave_core(const cpu_set_t *allowed, int cpu) {
  if (cpu < 0 || sched_getcpu() != cpu) return;
  cpu_set_t others = *allowed;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others)) sched_setaffinity(0, sizeof others, &others);
}

static void *work(void *argument) {
  int me = (int)(intptr_t)argument;
  rml_team *team = &pool.team;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  for (unsigned run = pool.seen[me];;) {
    run = wait_change(&team->run, run, may_spin(team));
    int threads = run & ((1 << TEAM_BITS) - 1);
    if (me >= threads) continue;
    leave_core(&allowed, atomic_load_explicit(&team->caller_cpu, memory_order_relaxed));
    team->walk(team->data, team, me, threads);
    rml_barrier(team, threads);
  }
  return 0;
}

// In the child of a fork only the forking thread lives: forget the workers, who may have been anywhere.
static void forget_workers(void) {
  memset(&pool.team, 0, sizeof pool.team);
  pool.workers = 0;
  atomic_store(&pool.busy, 0);
  atomic_flag_clear(&pool.taken);
}

// Makes the pool hold `count` workers at least. Signals stay with the threads of the application.
static int start_workers(int count) {
  static int registered;
  if (pool.workers >= count) return 1;
  if (!registered && pthread_atfork(0, 0, forget_workers)) return 0;
  registered = 1;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int me = pool.workers + 1; me <= count; me++) {
    pthread_t thread;
    pool.seen[me] = atomic_load(&pool.team.run.value);
    if (pthread_create(&thread, 0, work, (void *)(intptr_t)me)) break;
    pthread_detach(thread);
    pool.workers = me;
  }
  pthread_sigmask(SIG_SETMASK, &before, 0);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int spin = !sched_getaffinity(0, sizeof allowed, &allowed) && CPU_COUNT(&allowed) > pool.workers;
  atomic_store_explicit(&pool.team.spin, spin, memory_order_relaxed);
  return pool.workers >= count;
}

// Runs on `threads` threads, the pool being ours if they are several.
static void run_with(int threads, void (*walk)(void *, rml_team *, int, int), void *data) {
  rml_team *team = &pool.team;
  if (threads > 1 && start_workers(threads - 1)) {
    team->walk = walk;
    team->data = data;
    atomic_store_explicit(&team->caller_cpu, sched_getcpu(), memory_order_relaxed);
    signal_change(&team->run, ((atomic_load(&team->run.value) >> TEAM_BITS) + 1) << TEAM_BITS | (unsigned)threads);
  } else {
    threads = 1;
  }
  walk(data, team, 0, threads);
  rml_barrier(team, threads);
}

void rml_run_team(int threads, void (*walk)(void *, rml_team *, int, int), void *data) {
  if (threads > RML_MAX_THREADS) threads = RML_MAX_THREADS;
  // What other runs use is left to them: callers that come at the same time, again and again, soon have a core each.
  int others = atomic_load_explicit(&pool.busy, memory_order_relaxed);
  threads = threads - others > 1 ? threads - others : 1;
  int pooled = threads > 1 && !atomic_flag_test_and_set(&pool.taken);
  if (!pooled) threads = 1;
  atomic_fetch_add_explicit(&pool.busy, threads, memory_order_relaxed);
  run_with(threads, walk, data);
  atomic_fetch_sub_explicit(&pool.busy, threads, memory_order_relaxed);
  if (pooled) atomic_flag_clear(&pool.taken);
}
