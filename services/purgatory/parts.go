package purgatory

import (
	"log/slog"
	"sync"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/held"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/node"
	"tendril.dev/lib/query"
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
	node   *node.Node
	log    *slog.Logger
	store  *repository.Store
	shards *shards
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
	watch  *watch       // on what repositories depend
	hunter *hunt.Hunter // set before any shard is held
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
}

type survey struct {
	env
	schedule *schedule
	arrivals chan int // shards that came, and whose repositories were not looked through yet
	statuses *sync.Map
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
