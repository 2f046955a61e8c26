package purgatory

import (
	"context"
	"fmt"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/services/purgatory/repostate"
)

// served is how many times the budget of others the owners and maintainers of served repositories
// have.
const served = 10

// budget is the git data that may be stored: so much a day for each author, and only for those who
// are served while the disk is nearly full.
type budget struct {
	usage *limit.Usage
	marks *limit.Marks
	daily int64 // bytes of an author; 0: any number
}

// openBudget reads what was stored today, and looks after the disk until ctx ends.
func (w *worker) openBudget(ctx context.Context) error {
	usage, err := limit.OpenUsage(ctx, w.node.Bus, w.log, time.Now)
	if err != nil {
		return fmt.Errorf("open the stored bytes of the day: %w", err)
	}
	marks, err := limit.NewMarks("git", w.log, w.node.Metrics, limit.Disk(w.node.Settings.GitDataPath))
	if err != nil {
		return err
	}
	go marks.Run(ctx)
	w.node.Ready.Note("git full", marks.Full)
	w.budget = budget{usage, marks, w.node.Settings.DailyAuthorGitBytes}
	return nil
}

// charges are those for whom git data counts that an author's events name.
func (b budget) charges(author string) []limit.Charge {
	return []limit.Charge{{Party: limit.Party{What: limit.Git, Kind: limit.Author, Name: author}, Most: b.daily}}
}

// left is how many bytes may be fetched for a want, and why none where it is nothing.
func (b budget) left(ctx context.Context, want repostate.Want) (bytes int64, why string, err error) {
	factor := int64(1)
	if want.Served {
		factor = served
	}
	if full := b.marks.Full(); full != "" && !want.Served {
		return 0, "this service is full: " + full, nil
	}
	charges := b.charges(want.Payer)
	if err := b.usage.Refresh(ctx, charges...); err != nil {
		return 0, "", err
	}
	if bytes = b.usage.Left(factor, charges...); bytes == 0 {
		why = "rate-limited: as much git data as an author may have in a day is stored for " + npub(want.Payer)
	}
	return bytes, why, nil
}

// spend counts bytes that were fetched, also those of a fetch that failed.
func (b budget) spend(ctx context.Context, want repostate.Want, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	return b.usage.Spend(context.WithoutCancel(ctx), bytes, b.charges(want.Payer)...)
}
