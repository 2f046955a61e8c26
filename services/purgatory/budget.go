package purgatory

import (
	"context"
	"fmt"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// served is how many times the budget of others the owners and maintainers of served repositories
// have.
const served = 10

// errFull is all that strangers are told: the log says which disk has how much room.
const errFull = "error: this service is full"

// budget is the git data that may be stored: so much a day for each author and each client's
// address, and only for those who are served while the disk is nearly full.
type budget struct {
	usage           *limit.Usage
	marks           *limit.Marks
	author, address int64 // bytes a day; 0: any number
}

// payer is for whom git data counts.
type payer struct {
	author string // empty: not known
	client string // that pushes it; empty: it is fetched
	served bool   // the author owns or maintains a repository of the identifier that is served
}

// openBudget reads what was stored today, and looks after the disk until ctx ends.
func openBudget(ctx context.Context, n *node.Node) (*budget, error) {
	usage, err := limit.OpenUsage(ctx, n.Bus, n.Log, time.Now)
	if err != nil {
		return nil, fmt.Errorf("open the stored bytes of the day: %w", err)
	}
	s := n.Settings
	marks := limit.NewMarks("git", n.Log, n.Metrics, limit.Disk(s.GitDataPath))
	go marks.Run(ctx)
	go usage.Run(ctx)
	n.Ready.Note("git full", marks.Full)
	return &budget{usage: usage, marks: marks, author: s.DailyAuthorGitBytes, address: s.DailyAddressGitBytes}, nil
}

func (b *budget) charges(p payer) (all []limit.Charge) {
	if p.author != "" {
		all = append(all, limit.Charge{Party: limit.Party{What: limit.Git, Kind: limit.Author, Name: p.author},
			Most: b.author})
	}
	if p.client != "" {
		all = append(all, limit.Charge{Party: limit.Party{What: limit.Git, Kind: limit.ClientAddress, Name: p.client},
			Most: b.address})
	}
	return all
}

// check reads what all workers have counted, and returns how many bytes may be stored; that these
// are too few is a *repostate.Refused.
func (b *budget) check(ctx context.Context, p payer, bytes int64) (left int64, err error) {
	if full := b.marks.Full(); full != "" && !p.served {
		return 0, &repostate.Refused{Reason: errFull}
	}
	charges := b.charges(p)
	if err := b.usage.Refresh(ctx, charges...); err != nil {
		return 0, err
	}
	left, party, free := b.usage.Left(p.factor(), charges...)
	if max(bytes, 1) > left {
		err = usedUp(party, free)
	}
	return left, err
}

// factor multiplies the budgets of who pays.
func (p payer) factor() int64 {
	if p.served {
		return served
	}
	return 1
}

func usedUp(party limit.Party, free time.Time) error {
	whose := "your address"
	if party.Kind == limit.Author {
		whose = nostr.Npub(party.Name)
	}
	return &repostate.Refused{Reason: fmt.Sprintf("rate-limited: as much git data of %s is stored, or on its way, as may be in a day; there is room again at %s", whose, free.Format(time.RFC3339))}
}

// take counts bytes before they are kept, or gives a *repostate.Refused: parallel pushes and
// fetches share what is left.
func (b *budget) take(p payer, bytes int64) error {
	if charges := b.charges(p); !b.usage.Take(bytes, p.factor(), charges...) {
		_, party, free := b.usage.Left(p.factor(), charges...)
		return usedUp(party, free)
	}
	return nil
}

// account is the budget of who pays for one fetch. It implements fetch.Account.
type account struct {
	*budget
	payer
}

// Take counts bytes that a server sends.
func (a account) Take(bytes int64) error { return a.take(a.payer, bytes) }

// Paid implements release.Events.
func (b *budget) Paid(ctx context.Context, into *repository.Locked, author string, served bool,
	copy func(most int64) error) error {
	from := payer{author: author, served: served}
	left, err := b.check(ctx, from, 0)
	if err != nil {
		return nil // nothing is copied: a later look may
	}
	before, err := into.Bytes()
	if err != nil {
		return err
	}
	err = copy(left)
	after, _ := into.Bytes()
	stored := max(0, after-before)
	if limit, _ := repository.LimitReached(err); limit == "size" {
		stored, err = left, nil // so that it is not tried again before there is more room
	}
	b.spend(from, stored)
	return err
}

// spend counts bytes that are stored, and gives back, where they are less than 0, what is not.
func (b *budget) spend(p payer, bytes int64) { b.usage.Add(bytes, b.charges(p)...) }
