package importer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"sync"

	"tendril.dev/lib/nostr"
)

var (
	errForm      = errors.New("invalid: not an event: its id, public key or signature is not lower-case hex of the right length")
	errID        = errors.New("invalid: the id is not that of the event")
	errSignature = errors.New("invalid: the signature is wrong")
)

// verify checks an event's id and signature, and makes its JSON one that can be sent.
func verify(r *record) error {
	ev, plain, err := nostr.Parse(r.raw)
	if err != nil {
		return errors.New("invalid: not an event: " + err.Error())
	}
	r.kind = ev.Kind
	var sig [64]byte
	switch {
	case !nostr.IsHex64(ev.ID) || !nostr.IsHex64(ev.PubKey) || !nostr.ReadHex(sig[:], ev.Sig):
		return errForm
	case !nostr.HasID(ev):
		return errID
	case !nostr.Signed(ev):
		return errSignature
	}
	if !plain {
		r.raw = nostr.Encode(ev)
	}
	r.verified = true
	return nil
}

// idOf is the id that an event's JSON says, for those who read what was refused.
func idOf(raw []byte) string {
	var ev struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(raw, &ev) != nil || len(ev.ID) > 64 {
		return ""
	}
	return ev.ID
}

// batch is some records, in their order, and why those cannot be offered that cannot.
type batch struct {
	records []record
	wrong   []error
	ready   chan struct{} // closed when all were verified
}

// Sizes of batches, in records and bytes.
const (
	batchRecords = 256
	batchBytes   = 1 << 18
)

// verified reads a spool and has everything verified on all processors. The batches come in order.
// What is under way is bounded. errs gets why reading ended, if it was not the end.
func verified(ctx context.Context, in *spool, backward bool) (batches <-chan *batch, errs <-chan error, err error) {
	next, err := in.reader(backward)
	if err != nil {
		return nil, nil, err
	}
	workers := runtime.GOMAXPROCS(0)
	ordered, work, failed := make(chan *batch, 2*workers), make(chan *batch, workers), make(chan error, 1)
	var done sync.WaitGroup
	for range workers {
		done.Go(func() {
			for b := range work {
				b.verify()
			}
		})
	}
	go func() {
		defer close(ordered)
		defer done.Wait()
		defer close(work)
		for {
			b, err := fill(next)
			if len(b.records) > 0 {
				select {
				case ordered <- b:
				case <-ctx.Done():
					return
				}
				work <- b // the workers always go on
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					failed <- err
				}
				return
			}
		}
	}()
	return ordered, failed, nil
}

// fill takes as many records as a batch has.
func fill(next func() (record, error)) (*batch, error) {
	b := &batch{ready: make(chan struct{})}
	for size := 0; len(b.records) < batchRecords && size < batchBytes; {
		r, err := next()
		if err != nil {
			return b, err
		}
		b.records = append(b.records, r)
		size += len(r.raw)
	}
	return b, nil
}

func (b *batch) verify() {
	b.wrong = make([]error, len(b.records))
	for i := range b.records {
		if r := &b.records[i]; !r.verified {
			b.wrong[i] = verify(r)
		}
	}
	close(b.ready)
}
