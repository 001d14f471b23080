/* Emulated NCCL: an operation under way. */
#ifndef MNIST_DDP_TESTS_EMULATOR_NCCL_EXECUTION_H
#define MNIST_DDP_TESTS_EMULATOR_NCCL_EXECUTION_H

#include "nccl_comm.h"

namespace emulated
{

/* Those of one communicator go on one after the other, in the order in which they begin. All of it
 * belongs to the device thread. */
class execution_of_nccl
{
  public:
    explicit execution_of_nccl(std::shared_ptr<communicator> of);
    virtual ~execution_of_nccl();
    execution_of_nccl(const execution_of_nccl &) = delete;
    execution_of_nccl &operator=(const execution_of_nccl &) = delete;

    progress step();

  protected:
    /* Ends the process if something is not live device memory. */
    virtual void check_memory() const = 0;
    virtual progress move() = 0;
    virtual void spoil() = 0; /* what it sets becomes garbage */

    const std::shared_ptr<communicator> comm;

  private:
    void leave();

    bool begun = false, hangs = false;
};

std::shared_ptr<execution_of_nccl> make_collective(std::shared_ptr<communicator> comm,
                                                   const nccl_call &call);
std::shared_ptr<execution_of_nccl> make_messages(std::shared_ptr<communicator> comm,
                                                 const std::vector<nccl_call> &calls);

} // namespace emulated

#endif
