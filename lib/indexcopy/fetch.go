package indexcopy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"tendril.dev/proto"
)

const (
	// chunkWait is how long a chunk may take; it is asked for chunkTries times.
	chunkWait  = 10 * time.Second
	chunkTries = 3
	// chunkPause is the pause before a chunk is asked for again.
	chunkPause = 500 * time.Millisecond
	// endWait bounds how long the giver is told that a copy has ended. It notices by itself, too.
	endWait = time.Second
	// reportEvery is how often the log is told how far a copy is.
	reportEvery = 5 * time.Second
	tellEvery   = 250 * time.Millisecond
)

// fetch is a copy on its way here.
type fetch struct {
	Taker
	proto.IndexCopy
	user, replica string
	folder        *os.Root
	total         int64
	done          atomic.Int64 // bytes
}

// prepare checks what will come, and makes the folder for it.
func (f *fetch) prepare(promised uint64, size int64) (err error) {
	if f.Seq < promised {
		return fmt.Errorf("%w: up to %d, less than the %d that were offered", errBad, f.Seq, promised)
	}
	if f.total, err = checkCopy(f.IndexCopy, size); err != nil {
		return err
	}
	dir, err := f.Index.Gather()
	if err != nil {
		return err
	}
	if f.free == nil {
		f.free = f.Index.Free
	}
	if free, err := f.free(); err != nil {
		return err
	} else if free < uint64(f.total)+spare {
		return fmt.Errorf("the copy takes %d bytes, and the disk of NGIT_RELAY_DATA_PATH has %d free", f.total, free)
	}
	if f.folder, err = os.OpenRoot(dir); err != nil {
		return fmt.Errorf("open the folder for the copy: %w", err)
	}
	return nil
}

// file is one that is being fetched.
type file struct {
	*os.File
	place int // among the files
	bytes int64
	left  atomic.Int64 // chunks
}

// work is one chunk to fetch.
type work struct {
	file  *file
	chunk int
}

// fetch fetches all files, and has them on the disk when it returns nil.
func (f *fetch) fetch(ctx context.Context) error {
	defer f.folder.Close()
	limited, cancel := context.WithTimeout(ctx, within(f.total))
	defer cancel()
	working, fail := context.WithCancelCause(limited)
	var reporting, workers sync.WaitGroup
	reporting.Go(func() { f.report(working) })
	defer reporting.Wait()
	defer fail(nil)

	jobs := make(chan work)
	for range window {
		workers.Go(func() {
			for w := range jobs {
				if err := f.chunk(working, w); err != nil {
					fail(err)
				}
			}
		})
	}
	opened, err := f.hand(working, jobs)
	close(jobs)
	workers.Wait()
	for _, o := range opened { // those that are whole are closed already
		_ = o.Close()
	}
	return cmp.Or(context.Cause(working), err)
}

// hand makes the files and hands out their chunks.
func (f *fetch) hand(ctx context.Context, jobs chan<- work) (opened []*file, err error) {
	for place, is := range f.Files {
		made, err := f.folder.OpenFile(is.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return opened, fmt.Errorf("make a file of the copy: %w", err)
		}
		o := &file{File: made, place: place, bytes: is.Bytes}
		opened = append(opened, o)
		n := chunks(is.Bytes)
		o.left.Store(int64(n))
		if n == 0 {
			if err := o.keep(); err != nil {
				return opened, err
			}
		}
		for chunk := range n {
			select {
			case jobs <- work{o, chunk}:
			case <-ctx.Done():
				return opened, nil
			}
		}
	}
	return opened, nil
}

// keep has the disk keep a file that is whole.
func (o *file) keep() error {
	if err := errors.Join(o.Sync(), o.Close()); err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	return nil
}

// chunk fetches one chunk and writes it to its place.
func (f *fetch) chunk(ctx context.Context, w work) error {
	offset, length, ok := chunkAt(w.file.bytes, w.chunk)
	if !ok {
		return fmt.Errorf("chunk %d of a file of %d bytes", w.chunk, w.file.bytes)
	}
	data, err := f.ask(ctx, w, length)
	if err != nil {
		return err
	}
	if _, err := w.file.WriteAt(data, offset); err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	f.done.Add(int64(length))
	f.Metrics.took(length)
	if w.file.left.Add(-1) == 0 {
		return w.file.keep()
	}
	return nil
}

// ask asks for a chunk, again if it does not come or comes damaged.
func (f *fetch) ask(ctx context.Context, w work, length int) (data []byte, err error) {
	subject, err := proto.IndexSubject(f.user, f.replica, proto.IndexReads)
	if err != nil {
		return nil, err
	}
	read, err := json.Marshal(proto.IndexRead{Copy: f.Copy, File: w.file.place, Chunk: w.chunk})
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		attempt, cancel := context.WithTimeout(ctx, cmp.Or(f.wait, chunkWait))
		var answer []byte
		if answer, err = request(attempt, f.Conn, subject, read); err == nil {
			data, err = opened(answer, length)
		}
		cancel()
		switch {
		case err == nil:
			return data, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case try == chunkTries || errors.Is(err, errGone):
			return nil, fmt.Errorf("read chunk %d of %s: %w", w.chunk, f.Files[w.file.place].Name, err)
		}
		select {
		case <-time.After(cmp.Or(f.pause, chunkPause)):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// report tells how far the copy is, until ctx ends.
func (f *fetch) report(ctx context.Context) {
	tell, report := time.NewTicker(tellEvery), time.NewTicker(reportEvery)
	defer tell.Stop()
	defer report.Stop()
	for {
		select {
		case <-tell.C:
			f.tell(fmt.Sprintf("taking a copy of the index: %d of %d MiB", f.done.Load()>>20, f.total>>20))
		case <-report.C:
			f.Log.Info("taking a copy of the event index", "done", f.done.Load(), "bytes", f.total)
		case <-ctx.Done():
			return
		}
	}
}

// end tells the giver that nothing more is asked for.
func (f *fetch) end() {
	subject, err := proto.IndexSubject(f.user, f.replica, proto.IndexEnd)
	if err != nil {
		return
	}
	read, err := json.Marshal(proto.IndexRead{Copy: f.Copy})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endWait)
	defer cancel()
	if _, err := request(ctx, f.Conn, subject, read); err != nil {
		f.Log.Debug("telling that a copy of the event index has ended", "error", err)
	}
}
