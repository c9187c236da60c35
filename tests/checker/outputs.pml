/* A topology appends to an output, which is another table, before it commits its states: by a plan that is saved
   first, under a transaction number that the output's log records. It grows with the number of the microbatch, and two
   plans of one microbatch have different ones. The ledger of the states is one value here, which only fenced commits
   and RESTOREs move (`ledger.pml` is about them). A message of the depot is read by one plan. */

#ifndef DRIVERS
#define DRIVERS  2
#endif
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef WRITES
#define WRITES   4 /* versions of the ledger that are written before one driver is left alone */
#endif
#ifndef RESTORES
#define RESTORES 0
#endif
#ifndef LATER_IS_GREATER
#define LATER_IS_GREATER 1 /* whether of two plans of a microbatch the later one has the greater number */
#endif
#define PLANS    15 /* at least as many as there are in any schedule */
#define SIZE     (WRITES + MESSAGES + 2)

/* A state of the topology, by its token: the microbatch that led to it. */
typedef States { byte before_it, number, plan, reached }
typedef Plan { byte number, id, reached }                /* 0: there is none */
typedef Append { byte continues, reached, times }        /* rows that a plan appended: which they are */
States state[SIZE];
Plan saved[SIZE];                                        /* by the token of the state that they continue */
Append output[PLANS + 1];                                /* by the id of the plan */
byte table[SIZE];                                        /* the versions of the ledger: tokens */
byte latest, tokens, plans, arrived, restores, alone;
short recorded;                                          /* the last transaction number in the log of the output */

#ifdef OLD_PLAN_FOLLOWED
#define is_of_use(plan) true
#else
#define is_of_use(plan) (transaction(plan.number, plan.id) >= recorded)
#endif

bool states_are_in_output = true, output_is_in_states = true, progress = true;

#define now_state     table[latest]
#define may_write     (latest < (alone -> SIZE - 1 : WRITES))
#define undisturbed   (alone == _pid + 1)
#define may_go        (alone == 0 || undisturbed)
#define transaction(number, id) ((number) * 16 + (LATER_IS_GREATER -> (id) : 15 - (id)))

/* Each microbatch that the states know is in the output once; but for a RESTORE, nothing else is, except what the next
   attempt commits. */
inline check_output() {
  one = now_state; known = 0;
  do
  :: one != 0 ->
     known = known | (1 << state[one].plan);
     states_are_in_output = states_are_in_output && output[state[one].plan].continues == state[one].before_it + 1;
     states_are_in_output = states_are_in_output && output[state[one].plan].reached == state[one].reached;
     states_are_in_output = states_are_in_output && output[state[one].plan].times == 1;
     one = state[one].before_it
  :: else -> break
  od;
  if :: saved[now_state].id -> known = known | (1 << saved[now_state].id) :: else fi;
  one = 1;
  do
  :: one <= plans ->
     output_is_in_states = output_is_in_states && (restores > 0 || output[one].times == 0 || (known & (1 << one)));
     one++
  :: else -> break
  od;
  one = 0; known = 0;
  assert(states_are_in_output);
  assert(output_is_in_states)
}

inline forget() { primed = 0; number = 0; id = 0; reached = 0 }

inline make_plan() {
  plans < PLANS ->
  plans++; id = plans
}

active [DRIVERS] proctype driver() {
  byte primed, number, id, reached, tries, one;
  short known;

prime:
  atomic {
    may_go ->
    if
    :: undisturbed && state[now_state].reached == arrived -> goto end
    :: else
    fi;
    if
    :: undisturbed -> tries++; progress = tries <= MESSAGES + 1 + 3 * RESTORES; assert(progress)
    :: else
    fi;
    primed = latest
  }
want: /* to read the next versions, under a number that the output does not have */
  if
  :: atomic {
       may_go && state[table[primed]].reached < arrived ->
       number = state[table[primed]].number + 1; reached = state[table[primed]].reached + 1;
       if :: number * 16 <= recorded -> number = recorded / 16 + 1 :: else fi;
       do
       :: reached < arrived -> reached++
       :: break
       od }
  :: atomic { may_go && state[table[primed]].reached >= arrived -> forget(); goto prime }
  :: atomic { may_go && !undisturbed -> forget(); goto prime } /* crash */
  fi;
plan: /* the first one of a state stands, until the output has a greater number: then its successor does */
  atomic {
    may_go ->
    if
#ifdef PLAN_UNSAVED
    :: make_plan()
#else
    :: saved[table[primed]].id && is_of_use(saved[table[primed]]) ->
       number = saved[table[primed]].number; id = saved[table[primed]].id; reached = saved[table[primed]].reached
    :: else ->
       make_plan();
       saved[table[primed]].number = number; saved[table[primed]].id = id; saved[table[primed]].reached = reached
#endif
    fi
  }
check: /* who is late gives up */
#ifndef LATE_PLAN
  atomic { may_go -> if :: latest == primed :: else -> forget(); goto prime fi }
#endif
append: /* one commit of the output, unless its log has the number; who finds a greater one plans again */
  atomic {
    may_go ->
    if
#ifndef APPEND_WITHOUT_NUMBER
    :: transaction(number, id) == recorded
#endif
#ifdef APPEND_WITHOUT_NUMBER
    :: output[id].times && output[id].times < 2 -> output[id].times++
    :: output[id].times >= 2
#endif
#ifdef SMALLER_NUMBER_SKIPPED
    :: transaction(number, id) < recorded
#else
    :: transaction(number, id) < recorded && output[id].times < 2 -> forget(); goto prime
#endif
    :: transaction(number, id) > recorded -> recorded = transaction(number, id);
       output[id].continues = table[primed] + 1; output[id].reached = reached; output[id].times = 1; check_output()
    fi
  }
commit:
  if
  :: atomic { may_go && may_write && latest == primed ->
       tokens++; state[tokens].before_it = table[primed]; state[tokens].number = number;
       state[tokens].plan = id; state[tokens].reached = reached; latest++; table[latest] = tokens; check_output() }
  :: atomic { may_go && latest != primed -> forget(); goto prime }
  :: atomic { may_go && !undisturbed -> forget(); goto prime } /* crash, or a failing write */
  fi;
  if
  :: atomic { may_go -> saved[table[primed]].number = 0; saved[table[primed]].id = 0; saved[table[primed]].reached = 0;
       forget(); goto prime }
  :: atomic { may_go && !undisturbed -> forget(); goto prime } /* crash before the plan is deleted */
  fi;
end:
  skip
}

active proctype world() {
  byte version, one;
  short known;
  do
  :: atomic { arrived < MESSAGES -> arrived++ }
  :: atomic { latest > 0 && may_write && restores < RESTORES -> version = latest - 1; restores++;
       do
       :: version > 0 -> version--
       :: break
       od;
       latest++; table[latest] = table[version]; version = 0; check_output() }
  :: atomic { alone = 1;
       do
       :: alone < DRIVERS -> alone++
       :: break
       od; break }
  od;
  timeout -> progress = state[now_state].reached == arrived;
  assert(progress)
}
