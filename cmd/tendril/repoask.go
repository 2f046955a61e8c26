package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// errNoWorker: no worker holds the shard.
var errNoWorker = errors.New("no purgatory worker answers")

// listPause is how long a list waits for its next page. A worker sends what it knows by heart.
const listPause = 3 * time.Second

// parseRepo reads a repository as people name it: npub1…/identifier, naddr1…, or
// 30617:<pubkey>:<identifier>.
func parseRepo(name string) (ref nostr.RepoRef, err error) {
	if strings.HasPrefix(name, "30617:") {
		return nostr.ParseRepoRef(name)
	}
	prefix, identifier, slash := strings.Cut(name, "/")
	kind, value, err := nip19.Decode(prefix)
	switch v := value.(type) {
	case string:
		if err == nil && kind == "npub" && slash {
			ref = nostr.RepoRef{PubKey: v, Identifier: identifier}
		}
	case gonostr.EntityPointer:
		if err == nil && v.Kind == nostr.KindAnnouncement && !slash {
			ref = nostr.RepoRef{PubKey: v.PublicKey, Identifier: v.Identifier}
		}
	}
	if ref.PubKey == "" {
		return ref, fmt.Errorf("%.200q is no repository: want npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>", name)
	}
	return ref, nostr.CheckIdentifier(ref.Identifier)
}

// nameRepo is how people write a repository.
func nameRepo(ref string) string {
	parsed, err := nostr.ParseRepoRef(ref)
	if err != nil {
		return ref
	}
	npub, err := nip19.EncodePublicKey(parsed.PubKey)
	if err != nil {
		return ref
	}
	return npub + "/" + parsed.Identifier
}

// listRepos returns all repositories, of all shards. missing says for how many shards no worker
// answered.
func listRepos(ctx context.Context, b *bus.Bus) (list []proto.RepoStatus, missing int, err error) {
	list, missing = []proto.RepoStatus{}, proto.Shards // none is [] in JSON, not null
	answers, err := askFor(b, proto.RepoSubject(proto.RepoList), "")
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = answers.Unsubscribe() }()
	for missing > 0 {
		wait, cancel := context.WithTimeout(ctx, listPause)
		page, err := nextAnswer(wait, answers)
		cancel()
		if errors.Is(err, errNoWorker) || errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		list, missing = append(list, page.Repos...), missing-page.Shards
	}
	return list, missing, nil
}

// askRepo asks for one repository.
func askRepo(ctx context.Context, b *bus.Bus, verb proto.RepoVerb, ref nostr.RepoRef) (proto.RepoStatus, error) {
	answers, err := askFor(b, proto.RepoSubject(verb), ref.String())
	if err != nil {
		return proto.RepoStatus{}, err
	}
	defer func() { _ = answers.Unsubscribe() }()
	a, err := nextAnswer(ctx, answers)
	if err != nil {
		return proto.RepoStatus{}, err
	}
	if len(a.Repos) != 1 || a.Repos[0].Ref != ref.String() {
		return proto.RepoStatus{}, fmt.Errorf("the answer about %s is about something else", nameRepo(ref.String()))
	}
	return a.Repos[0], nil
}

func askFor(b *bus.Bus, subject, ref string) (answers *nats.Subscription, err error) {
	question, err := json.Marshal(proto.RepoQuery{Ref: ref})
	if err != nil {
		return nil, err
	}
	inbox := proto.RepoAnswerSubject(nuid.Next())
	if answers, err = b.Conn.SubscribeSync(inbox); err == nil {
		err = b.Conn.PublishMsg(&nats.Msg{Subject: subject, Reply: inbox, Data: question})
	}
	if err != nil {
		return nil, fmt.Errorf("ask about repositories: %w", err)
	}
	return answers, nil
}

func nextAnswer(ctx context.Context, answers *nats.Subscription) (a proto.RepoAnswer, err error) {
	m, err := answers.NextMsgWithContext(ctx)
	if errors.Is(err, nats.ErrNoResponders) {
		return a, errNoWorker
	}
	if err != nil {
		return a, fmt.Errorf("wait for an answer: %w", err)
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return a, fmt.Errorf("read an answer: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}
