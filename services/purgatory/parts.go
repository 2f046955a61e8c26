package purgatory

import (
	"log/slog"
	"sync"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/held"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/node"
	"tendril.dev/lib/query"
	"tendril.dev/lib/testonly"
	"tendril.dev/services/purgatory/fetch"
	"tendril.dev/services/purgatory/hunt"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/workqueue"
)

// The parts of a worker. Each knows only those above it:
//
//	notices      tells on the bus and in metrics what happened
//	knowledge    reads what is held and accepted
//	hosting      which repositories are here by what their owners announced
//	schedule     which identifiers and repositories are looked at, and when; the hunt
//	follower     hears of events and bans, and puts what they concern on the schedule
//	retention    ends repositories, keeps them for a while, and removes them
//	expiry       ends the time of held events
//	fetcher      fetches git data for the hunt
//	reconciler   brings repositories in line with their events
//	housekeeping repacks, and removes what no reference reaches
//	survey       finds the repositories of shards that came
//	browser      answers what pages show of the data of a repository
//	answers      answers questions about repositories
//	authority    decides, takes and releases pushes
//	worker       puts the parts together and runs them

// env is what each part uses.
type env struct {
	node      *node.Node
	log       *slog.Logger
	store     *repository.Store
	shards    *shards
	constants constants
}

// constants are what no operator sets and tests change.
type constants struct {
	Git         string        // program
	UserDelay   time.Duration // until what a client's event promises is hunted: mostly it is pushed
	SyncDelay   time.Duration // until what a relay's event promises is hunted: more events may come
	Again       time.Duration // until the next look at what was busy, or too much for one look
	Turn        time.Duration // that a look waits for a repository for which clients wait too
	BackOff     time.Duration // of the hunt, at first, and until a failed look is tried again
	MostBackOff time.Duration // of the hunt
	HuntsAtOnce int           // of all git servers together
	Answer      time.Duration // until a push is refused because ingest does not restart its clocks
}

var defaultConstants = constants{
	Git:         "git",
	UserDelay:   testonly.Duration("HUNT_USER_DELAY", 3*time.Minute),
	SyncDelay:   testonly.Duration("HUNT_SYNC_DELAY", 500*time.Millisecond),
	Again:       testonly.Duration("HUNT_INTERVAL", time.Second),
	Turn:        time.Second,
	BackOff:     testonly.Duration("HUNT_BACKOFF_BASE", 20*time.Second),
	MostBackOff: testonly.Duration("HUNT_BACKOFF_MAX", 2*time.Minute),
	HuntsAtOnce: testonly.Int("HUNTS_AT_ONCE", 32),
	Answer:      lookTime,
}

type notices struct {
	env
	metrics *metrics
}

type knowledge struct {
	env
	events   query.Source
	holdings *held.Set
	rules    repository.Rules
}

type hosting struct {
	env
	knowledge *knowledge
}

type schedule struct {
	env
	queue  *queue
	hunter *hunt.Hunter // set before any shard is held

	// depends is on which keys and events the repositories of this worker depend: a change of what one
	// key says finds by it the repositories concerned, and no others, also those that depended on what
	// is gone now, and those of other owners where the key has no folder. A worker that takes a shard
	// looks at all of its repositories.
	depends repository.Mentions
	speaks  repository.Mentions // of their confirmed maintainers
	groups  sync.Map            // repository.Place → authority.Group, of those that are hosted
	follows sync.Map            // repository.Place → repository.Followed, the state that its references follow
	owed    sync.Map            // identifier → ids of accepted pull requests that are not named everywhere
}

type follower struct {
	env
	knowledge *knowledge
	schedule  *schedule
	releaser  *release.Releaser
}

type retention struct {
	env
	notices   *notices
	knowledge *knowledge
	hosting   *hosting
	schedule  *schedule
	releaser  *release.Releaser
	sender    *candidates.Sender
	belongs   repository.Belongs // our domains, those of earlier too
	statuses  *sync.Map          // repository.Place → proto.RepoStatus, of when it was last looked at
}

type expiry struct {
	env
	notices   *notices
	knowledge *knowledge
	schedule  *schedule
	sender    *candidates.Sender
}

type fetcher struct {
	env
	notices   *notices
	knowledge *knowledge
	hosting   *hosting
	releaser  *release.Releaser
	budget    *budget
	limits    fetch.Limits
	guard     *netguard.Guard
	inside    *netguard.Guard  // for the addresses of other workers only
	directory *claim.Directory // set before any shard is held
}

type reconciler struct {
	env
	notices   *notices
	knowledge *knowledge
	schedule  *schedule
	retention *retention
	expiry    *expiry
	releaser  *release.Releaser
	chores    *workqueue.Queue[repository.Place] // of housekeeping
	statuses  *sync.Map
	turn      chan struct{} // has room for one look that waits for a repository
}

type survey struct {
	env
	knowledge *knowledge
	schedule  *schedule
	releaser  *release.Releaser
	arrivals  chan int // shards that came, and whose repositories were not looked through yet
	statuses  *sync.Map
}

type answers struct {
	env
	knowledge *knowledge
	hosting   *hosting
	schedule  *schedule
	retention *retention
	statuses  *sync.Map
}

// authority implements githttp.Authority: for announced repositories, or for those below /prs/
// (GRASP-06), in which contributors offer pull requests. Any path there may be pushed to: a
// repository is made by a push that is allowed, and goes with its last reference.
type authority struct {
	env
	prs        bool
	notices    *notices
	knowledge  *knowledge
	hosting    *hosting
	schedule   *schedule
	reconciler *reconciler
	releaser   *release.Releaser
	sender     *candidates.Sender
	budget     *budget
}

// forRelease implements release.Events.
type forRelease struct {
	*knowledge
	*hosting
	*budget
	schedule *schedule
}
