package repository

import (
	"context"

	"tendril.dev/lib/limit"
)

// pool is so many processes and so much memory for them.
type pool struct {
	processes, memory *limit.Fair
	most              int64 // bytes of memory of one process
}

// newPool makes a pool of which one client has a part at most.
func newPool(processes, processesOfClient, memory, memoryOfClient int64) pool {
	return pool{
		processes: limit.NewFair(processes, max(1, processesOfClient)),
		memory:    limit.NewFair(memory, memoryOfClient),
		most:      memoryOfClient,
	}
}

// acquire waits for a process and its memory.
func (p *pool) acquire(ctx context.Context, client string, memory int64) (release func(), err error) {
	process, err := p.processes.Acquire(ctx, client)
	if err != nil {
		return nil, err
	}
	room, err := p.memory.AcquireN(ctx, client, memory)
	if err != nil {
		process()
		return nil, err
	}
	return func() { room(); process() }, nil
}

// divide divides the processes and the memory of all git work. A quarter is for the worker's own,
// so that clients, of whom there may be any number, never stop it; an eighth of the memory is for
// what clients' requests keep in it. Clients share the rest: each has a quarter of the processes
// and half of the memory at most, and who has least comes next.
func (s *Store) divide() {
	own := max(1, int64(s.Processes)/4)
	clients := max(1, int64(s.Processes)-own)
	ownMemory, requests := s.MemoryBudget/4, s.MemoryBudget/8
	rest := s.MemoryBudget - ownMemory - requests
	s.own = newPool(own, own, ownMemory, ownMemory)
	s.clients = newPool(clients, clients/4, rest, rest/2)
	s.requests = limit.NewFair(requests, requests/2)
	s.spools = limit.NewFair(s.SpoolBytes+SpoolStep, s.SpoolShare+SpoolStep)
}

// Memory is what one request keeps in memory. It is charged to its client before it is kept.
type Memory struct {
	room   *limit.Fair
	client string
	taken  []func()
}

// RequestMemory begins what one request of a client takes of the room for requests, with nothing.
func (s *Store) RequestMemory(client string) *Memory {
	return &Memory{room: s.requests, client: client}
}

// Take takes so many bytes more, or gives limit.ErrShare or limit.ErrFull.
func (m *Memory) Take(bytes int64) error {
	release, err := m.room.Try(m.client, bytes)
	if err == nil {
		m.taken = append(m.taken, release)
	}
	return err
}

// Done gives everything back. It may be used again.
func (m *Memory) Done() {
	for _, release := range m.taken {
		release()
	}
	m.taken = nil
}

// Kept is how much of clients' requests and answers is in memory and on disk, in bytes.
func (s *Store) Kept() (memory, disk int64) {
	memory, _, _ = s.requests.Counts(0)
	disk, _, _ = s.spools.Counts(0)
	return memory, disk
}
