// Runs rounds of changing numbers of threads and counts how often each thread worked in each of them.
//
// A worker that is not needed pauses after it has read which round it is (SKIT_POOL_PAUSE), as if it had been preempted:
// the next round then begins before it has gone back to sleep.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

inline void pause_a_little() { usleep(useconds_t(rand() % 40)); }
#define SKIT_POOL_PAUSE pause_a_little
#include "pool.h"

int main(int count, char** arguments) {
  const int rounds = count > 1 ? atoi(arguments[1]) : 2000;
  const int threads[] = {3, 2, 3, 1, 4, 2};
  skit::Pool pool;
  for (int round = 0; round < rounds; round++) {
    const int needed = threads[round % 6];
    std::atomic<int> worked[4] = {};
    pool.run(needed, [&](skit::Worker& worker) {
      worked[worker.index()]++;
      worker.barrier();
      worked[worker.index()]++;
    });
    for (int index = 0; index < 4; index++)
      if (worked[index] != (index < needed ? 2 : 0)) {
        std::printf("round %d of %d threads: thread %d did %d of its 2 steps\n", round, needed, index, worked[index].load());
        return 1;
      }
  }
  return 0;
}
