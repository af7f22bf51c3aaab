// Runs rounds of changing numbers of threads and counts how often each thread worked in each of them, and how often
// each of the items that they divide was done.
//
// A worker that is not needed pauses after it has read which round it is (SKIT_POOL_PAUSE), as if it had been
// preempted: the next round then begins before it has gone back to sleep.
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
    const int items = round % 41, unit = 1 + round % 3;
    std::atomic<int> worked[4] = {}, taken[4] = {}, done[41] = {};
    pool.run(needed, [&](skit::Worker& worker) {
      worked[worker.index()]++;
      worker.divide(taken, items, unit, [&](skit::Range range) {
        for (int item = range.first; item < range.end; item++) done[item]++;
        if (worker.index() == round % needed) pause_a_little();
      });
      worker.barrier();
      worked[worker.index()]++;
    });
    for (int item = 0; item < 41; item++)
      if (done[item] != (item < items)) {
        std::printf("round %d of %d threads: item %d of %d was done %d times\n", round, needed, item, items,
                    done[item].load());
        return 1;
      }
    for (int index = 0; index < 4; index++)
      if (worked[index] != (index < needed ? 2 : 0)) {
        std::printf("round %d of %d threads: thread %d did %d of its 2 steps\n", round, needed, index,
                    worked[index].load());
        return 1;
      }
  }
  return 0;
}
