package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"tendril.dev/lib/limit"
)

var (
	// ErrElsewhere is a lock or a lease that is not given, because another worker has the repository
	// or is about to get it.
	ErrElsewhere = errors.New("the repository is another worker's")
	// ErrLease is a write that was not done, or was cut off, because another worker may write there
	// now.
	ErrLease = errors.New("the lease of the repository has ended")
)

// Tenure is leave to write in the repositories of an identifier.
type Tenure struct {
	// Lease ends when another process may write there: git processes that write are killed then, and
	// nothing is moved or removed any more. Required.
	Lease context.Context

	// Open ends, before Lease, when no more writers may begin. Required.
	Open context.Context

	// Leave is called once, when the writer has ended. Required.
	Leave func()
}

// Leased is a repository in which this process may write for as long as a lease. Its methods may
// run beside readers and beside the holder of the lock, because they only add objects.
type Leased struct {
	*Repo
	lease context.Context
	leave func()
}

// Locked is a repository of which the caller is the only writer, of all processes. References, notes
// and the repository itself change only by its methods. It is of no use any more after Done, or when
// the lease ends under which it was taken, also if the same process gets another.
type Locked struct {
	*Leased
	// folder is the repository's folder with an flock; nil: it is not there. Every git of this writer
	// inherits it. So the lock lasts as long as the process that has it or one of these lives, also
	// if that process is frozen when its lease ends, and does not hear of that.
	folder   *os.File
	alone    bool // the file system knows such locks
	outlived bool // a git has ended, and something that it started may still run
}

// Lease gives leave to add to the repository. Done must be called when that has ended.
// ErrElsewhere: another process may write there.
func (r *Repo) Lease() (*Leased, error) {
	t, err := r.enter()
	if err != nil {
		return nil, err
	}
	return r.leased(t.Lease, t.Leave), nil
}

func (r *Repo) leased(lease context.Context, leave func()) *Leased {
	lease, end := context.WithCancel(lease)
	return &Leased{r, lease, sync.OnceFunc(func() { end(); leave() })}
}

// enter counts a writer. The empty repository belongs to no shard.
func (r *Repo) enter() (Tenure, error) {
	if r.Store.Enter == nil || r.Identifier == "" {
		return Tenure{context.Background(), context.Background(), func() {}}, nil
	}
	return r.Store.Enter(r.Identifier)
}

// Done gives the lease back, and the lock if there is one: each attempt after that is
// ErrLease. Calling it again does nothing.
func (l *Leased) Done() { l.leave() }

// During returns a context that ends with the lease too, with ErrLease as its cause.
func (l *Leased) During(ctx context.Context) (during context.Context, end func()) {
	during, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.lease, func() { cancel(ErrLease) })
	return during, func() {
		stop()
		cancel(nil)
	}
}

// MayWrite returns ErrLease when the lease has ended, or why ctx has. It is asked before files are
// moved or removed.
func (l *Leased) MayWrite(ctx context.Context) error {
	if l.lease.Err() != nil {
		return ErrLease
	}
	return context.Cause(ctx)
}

// lock is that of one repository.
type lock struct {
	users int
	// writer has one place, which parties get fairly: this worker, each client, and all strangers
	// together. strangers has one place too, for the stranger who is next.
	writer, strangers *limit.Fair
}

// The parties at a lock. Clients have names of their own, which begin otherwise.
const (
	theWorker    = "the worker"
	theStrangers = "the strangers"
	aClient      = "client "
)

// Lock waits until the worker itself is the only writer of the repository, which need not be on the
// disk. Done must be called when the work has ended, and Lock not before that again: two writers
// would wait for each other. ErrElsewhere: another process may write there.
func (r *Repo) Lock(ctx context.Context) (*Locked, error) {
	return r.lock(func(l *lock) (func(), error) { return l.writer.Acquire(ctx, theWorker) })
}

// LockFor is Lock for a client. Clients come one after the other, however much each of them sends.
// All strangers together count as one client, so that others wait for one of them at most.
func (r *Repo) LockFor(ctx context.Context, client string, stranger bool) (*Locked, error) {
	return r.lock(func(l *lock) (func(), error) {
		if !stranger {
			return l.writer.Acquire(ctx, aClient+client)
		}
		next, err := l.strangers.Acquire(ctx, aClient+client)
		if err != nil {
			return nil, err
		}
		release, err := l.writer.Acquire(ctx, theStrangers)
		if err != nil {
			next()
			return nil, err
		}
		return func() { release(); next() }, nil
	})
}

// TryLock is Lock where the repository is free; ok is false where it is not. It may be called while
// other repositories are locked.
func (r *Repo) TryLock() (l *Locked, ok bool) {
	l, err := r.lock(func(l *lock) (func(), error) { return l.writer.Try(theWorker, 1) })
	return l, err == nil
}

// LockInTurn is TryLock where nobody else waits for the repository. Where clients do, it waits for its
// turn among them until ctx ends: one after the other they would have the lock for ever.
func (r *Repo) LockInTurn(ctx context.Context) (l *Locked, ok bool) {
	l, err := r.lock(func(l *lock) (func(), error) {
		release, err := l.writer.Try(theWorker, 1)
		if err == nil || !r.isAwaited(l) {
			return release, err
		}
		return l.writer.Acquire(ctx, theWorker)
	})
	return l, err == nil
}

// isAwaited reports whether there are others than who asks and who has the lock.
func (r *Repo) isAwaited(l *lock) bool {
	r.Store.locking.Lock()
	defer r.Store.locking.Unlock()
	return l.users > 2
}

// WithLock does something under the lock.
func (r *Repo) WithLock(ctx context.Context, do func(*Locked) error) error {
	l, err := r.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Done()
	return do(l)
}

// lock takes the lock by what take does. Who waits counts as a writer already.
func (r *Repo) lock(take func(*lock) (release func(), err error)) (*Locked, error) {
	tenure, err := r.enter()
	if err != nil {
		return nil, err
	}
	s := r.Store
	s.locking.Lock()
	if s.locks == nil {
		s.locks = map[Place]*lock{}
	}
	l := s.locks[r.Place]
	if l == nil {
		l = &lock{writer: limit.NewFair(1, 1), strangers: limit.NewFair(1, 1)}
		s.locks[r.Place] = l
	}
	l.users++
	s.locking.Unlock()
	leave := func() {
		s.locking.Lock()
		if l.users--; l.users == 0 {
			delete(s.locks, r.Place)
		}
		s.locking.Unlock()
		tenure.Leave()
	}
	release, err := take(l)
	if err == nil && tenure.Open.Err() != nil { // it waited, and the shard is being let go
		release()
		err = ErrElsewhere
	}
	if err != nil {
		leave()
		return nil, err
	}
	locked := &Locked{}
	locked.Leased = r.leased(tenure.Lease, func() { locked.close(); release(); leave() })
	if err := locked.own(); err != nil {
		locked.Done()
		return nil, err
	}
	return locked, nil
}

// own takes the flock of the folder, if that is there. ErrElsewhere: another process has it, or a git
// that such a process started. Where the file system knows no such locks, writers are kept apart by
// their leases only.
func (l *Locked) own() error {
	for l.folder == nil {
		folder, err := os.Open(l.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("lock the repository: %w", err)
		}
		err = syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			folder.Close()
			return ErrElsewhere
		}
		l.folder, l.alone = folder, err == nil
		ours, _ := folder.Stat()
		if there, err := os.Stat(l.Path); err != nil || !os.SameFile(ours, there) {
			l.close() // it was removed before it was locked, and may have been made again
		}
	}
	return nil
}

// close gives the flock back. Unless something runs still that may write, no copy of the descriptor
// keeps it: a git that another goroutine starts has one until it is executed.
func (l *Locked) close() {
	if l.folder != nil {
		if !l.outlived {
			_ = syscall.Flock(int(l.folder.Fd()), syscall.LOCK_UN) // closing gives back what this does not
		}
		l.folder.Close()
		l.folder = nil
	}
}

// writing prepares a git command that inherits the flock of the folder.
func (l *Locked) writing(args ...string) *Command {
	c := l.Leased.writing(args...)
	c.locked = l
	return c
}
