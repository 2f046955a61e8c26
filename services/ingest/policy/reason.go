package policy

// Reason classifies rejections, for metrics: a bounded set, where messages are sentences.
type Reason string

// The reasons.
const (
	ReasonMalformed      Reason = "malformed"       // not an event at all
	ReasonInvalid        Reason = "invalid"         // of its kind, it is not well-formed
	ReasonBlacklisted    Reason = "blacklisted"     // its author, or its repository
	ReasonNotWhitelisted Reason = "not_whitelisted" // its repository
	ReasonDeleted        Reason = "deleted"
	ReasonRejectedBefore Reason = "rejected_before"
	ReasonExpired        Reason = "expired"   // NIP-40
	ReasonEphemeral      Reason = "ephemeral" // not stored
	ReasonFuture         Reason = "future"
	ReasonProtected      Reason = "protected"          // NIP-70
	ReasonNotListed      Reason = "service_not_listed" // an announcement that does not list us
	ReasonNoAnnouncement Reason = "no_announcement"
	ReasonUnauthorized   Reason = "unauthorized"
	ReasonSuperseded     Reason = "superseded"
	ReasonOrphan         Reason = "orphan"      // neither names nor is named by what is accepted
	ReasonNotHeld        Reason = "not_held"    // a release of what is not held any more
	ReasonCrowded        Reason = "crowded"     // too much is held already
	ReasonOverBudget     Reason = "over_budget" // its author, address or relay has stored as much as it may today
	ReasonFull           Reason = "full"        // the service is above a high-water mark
	ReasonUndecidable    Reason = "undecidable" // a failure of ours, again and again
)
