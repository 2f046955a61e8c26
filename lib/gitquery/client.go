// Package gitquery asks the purgatory worker that holds a repository about it, and answers for such
// a worker. The questions and answers are those of [proto.RepoVerb].
//
// NATS finds the worker: each worker listens to the subjects of the shards that it holds. So a
// question reaches one worker, and where no worker holds the shard the asker is told at once. The
// deadline of the asker travels with the question. This package does not know git, and does not own
// who may ask what: that is proto.Users.
package gitquery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/testonly"
	"tendril.dev/proto"
)

var (
	// ErrNoWorker is the answer where no worker holds the shard of the repository.
	ErrNoWorker = errors.New("no purgatory worker answers")
	// ErrMoved is a worker's answer that it does not hold the shard any more, ErrBusy that too many
	// questions wait there. Nothing was done, and the client asks again while its Patience lasts.
	ErrMoved = errors.New("the repository is moving to another worker")
	ErrBusy  = errors.New("the worker is asked too much")
	// ErrQuestion is a worker's answer to what is no question.
	ErrQuestion = errors.New("not a question that can be answered")
)

// askAgain is the pause before a question is asked again for which there was no worker.
const askAgain = 100 * time.Millisecond

// HandOverWait is how long what a client asks of a repository waits while no worker holds it.
var HandOverWait = testonly.Duration("GIT_HANDOVER_WAIT", 30*time.Second)

// Client asks. It may be copied, and used by several goroutines.
type Client struct {
	Conn *nats.Conn // Required.
	// Patience is how long a question waits for a worker that holds the shard. For the answer it waits
	// until the deadline of its context.
	Patience time.Duration
	// ForPages refuses the questions that the gateway may not ask on a shared NATS server, so that one
	// process refuses them too.
	ForPages bool
}

// Show tells all about a repository.
func (c Client) Show(ctx context.Context, ref nostr.RepoRef) (proto.RepoStatus, error) {
	return one[proto.RepoStatus](ctx, c, proto.RepoShow, ref)
}

// Restore cancels the removal of a repository that has ended.
func (c Client) Restore(ctx context.Context, ref nostr.RepoRef) (proto.RepoStatus, error) {
	return one[proto.RepoStatus](ctx, c, proto.RepoRestore, ref)
}

// Remove removes a repository that has ended, and tells what it was.
func (c Client) Remove(ctx context.Context, ref nostr.RepoRef) (proto.RepoStatus, error) {
	return one[proto.RepoStatus](ctx, c, proto.RepoRemove, ref)
}

// Waits tells whether a repository is here, served or held, and what it waits for.
func (c Client) Waits(ctx context.Context, ref nostr.RepoRef) (proto.RepoWaitsAnswer, error) {
	return one[proto.RepoWaitsAnswer](ctx, c, proto.RepoWaits, ref)
}

// Folder reads a folder or a file of a branch or tag, for a client of a front door. Without a
// commit in the answer there is none.
func (c Client) Folder(ctx context.Context, ref nostr.RepoRef, q proto.RepoFolderQuestion) (a proto.RepoFolderAnswer,
	err error) {
	q.Ref = ref.String()
	err = c.ask(ctx, shardOf(ref), proto.RepoFolder, q, &a)
	return a, err
}

// Log reads commits of a branch or tag, the newest first, for a client of a front door.
func (c Client) Log(ctx context.Context, ref nostr.RepoRef, q proto.RepoLogQuestion) (a proto.RepoLogAnswer,
	err error) {
	q.Ref = ref.String()
	err = c.ask(ctx, shardOf(ref), proto.RepoLog, q, &a)
	return a, err
}

// Ages tells how old branches and tags are, for a client of a front door.
func (c Client) Ages(ctx context.Context, ref nostr.RepoRef, client string) (a proto.RepoAgesAnswer, err error) {
	q := proto.RepoAgesQuestion{Ref: ref.String(), Client: client}
	err = c.ask(ctx, shardOf(ref), proto.RepoAges, q, &a)
	return a, err
}

func one[A any](ctx context.Context, c Client, verb proto.RepoVerb, ref nostr.RepoRef) (answer A, err error) {
	err = c.ask(ctx, shardOf(ref), verb, proto.RepoQuestion{Ref: ref.String()}, &answer)
	return answer, err
}

// References are the branches and tags of a repository in the order of their names. Each page is as
// the repository is when it is answered. head is the branch that HEAD follows. An error is the
// last.
func (c Client) References(ctx context.Context, ref nostr.RepoRef) iter.Seq2[proto.RepoReferencesAnswer, error] {
	return func(yield func(proto.RepoReferencesAnswer, error) bool) {
		question := proto.RepoReferencesQuestion{Ref: ref.String()}
		for {
			var page proto.RepoReferencesAnswer
			err := c.ask(ctx, shardOf(ref), proto.RepoReferences, question, &page)
			if !yield(page, err) || err != nil || !page.More || len(page.References) == 0 {
				return
			}
			question.After = page.References[len(page.References)-1].Name
		}
	}
}

// List lists the repositories of all shards. Beside an error there is what some workers have
// answered.
func (c Client) List(ctx context.Context) ([]proto.RepoStatus, error) {
	type answered struct {
		repos []proto.RepoStatus
		err   error
	}
	answers := make(chan answered, proto.Shards)
	for shard := range proto.Shards {
		go func() {
			repos, err := c.listShard(ctx, proto.ShardName(shard))
			answers <- answered{repos, err}
		}()
	}
	all, missing := []proto.RepoStatus{}, 0 // none is [] in JSON, not null
	var failed error
	for range proto.Shards {
		a := <-answers
		if all = append(all, a.repos...); a.err != nil {
			missing, failed = missing+1, a.err
		}
	}
	switch {
	case missing == proto.Shards:
		return all, failed
	case missing > 0:
		return all, fmt.Errorf("%d of %d shards: %w; what lies there is not listed", missing, proto.Shards, failed)
	}
	return all, nil
}

func (c Client) listShard(ctx context.Context, shard string) (list []proto.RepoStatus, err error) {
	for after := ""; ; after = list[len(list)-1].Ref {
		var page proto.RepoListAnswer
		err := c.ask(ctx, shard, proto.RepoList, proto.RepoListQuestion{After: after}, &page)
		if list = append(list, page.Repos...); err != nil || !page.More || len(page.Repos) == 0 {
			return list, err
		}
	}
}

func shardOf(ref nostr.RepoRef) string { return proto.ShardName(proto.ShardOf(ref.Identifier)) }

// ask asks until a worker has answered, and only a worker that has done nothing is asked
// twice.
func (c Client) ask(ctx context.Context, shard string, verb proto.RepoVerb, question, answer any) error {
	if c.ForPages && !slices.Contains(proto.PageVerbs(), verb) {
		return fmt.Errorf("%w: %s is not asked for pages", ErrQuestion, verb)
	}
	data, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("write the question %s: %w", verb, err)
	}
	patience, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	for {
		err := c.askOnce(ctx, proto.RepoSubject(shard, verb), data, answer)
		if !errors.Is(err, ErrNoWorker) && !errors.Is(err, ErrMoved) && !errors.Is(err, ErrBusy) {
			return err
		}
		if backoff.Sleep(patience, askAgain) != nil {
			return err
		}
	}
}

func (c Client) askOnce(ctx context.Context, subject string, question []byte, answer any) error {
	m := &nats.Msg{Subject: subject, Data: question, Header: nats.Header{}}
	if deadline, has := ctx.Deadline(); has {
		m.Header.Set(proto.HeaderTimeout, time.Until(deadline).String())
	}
	got, err := c.Conn.RequestMsgWithContext(ctx, m)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return ErrNoWorker
	case err != nil:
		return fmt.Errorf("ask a purgatory worker: %w", err)
	}
	switch code, why := got.Header.Get(micro.ErrorCodeHeader), got.Header.Get(micro.ErrorHeader); code {
	case "":
		if err := json.Unmarshal(got.Data, answer); err != nil {
			return fmt.Errorf("read the answer of a purgatory worker: %w", err)
		}
		return nil
	case proto.RepoMoved:
		return ErrMoved
	case proto.RepoBusy:
		return ErrBusy
	default:
		return errors.New(why) // a sentence for the one who asks
	}
}
