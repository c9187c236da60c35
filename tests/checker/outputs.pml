/* A topology appends to an output, which is another table, before it commits its states: by a plan that is saved
   first, under a number that the output's log records. The ledger of the states is one value here, which only fenced
   commits and RESTOREs move (`ledger.pml` is about them). A message of the depot is read by one plan. */

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
#define NUMBERS  16 /* more than there are in any schedule */
#define SIZE     (WRITES + MESSAGES + 2)

/* A state of the topology, by its token: the microbatch that led to it. */
typedef States { byte before_it, number, reached }
typedef Plan { byte number, reached }                    /* 0: there is none */
typedef Append { byte continues, reached, times }               /* rows of the output under a number: which they are */
States state[SIZE];
Plan saved[SIZE];                                        /* by the token of the state that they continue */
Append output[NUMBERS];
byte table[SIZE];                                        /* the versions of the ledger: tokens */
byte latest, tokens, recorded, arrived, restores, alone;

bool states_are_in_output = true, output_is_in_states = true, progress = true;

#define now_state     table[latest]
#define may_write     (latest < (alone -> SIZE - 1 : WRITES))
#define undisturbed   (alone == _pid + 1)
#define may_go        (alone == 0 || undisturbed)

/* Each microbatch that the states know is in the output once; but for a RESTORE, nothing else is, except what the next
   attempt commits. */
inline check_output() {
  one = now_state; known = 0;
  do
  :: one != 0 ->
     known = known | (1 << state[one].number);
     states_are_in_output = states_are_in_output && output[state[one].number].continues == state[one].before_it + 1;
     states_are_in_output = states_are_in_output && output[state[one].number].reached == state[one].reached;
     states_are_in_output = states_are_in_output && output[state[one].number].times == 1;
     one = state[one].before_it
  :: else -> break
  od;
  if :: saved[now_state].number -> known = known | (1 << saved[now_state].number) :: else fi;
  one = 1;
  do
  :: one <= recorded ->
     output_is_in_states = output_is_in_states && (restores > 0 || output[one].times == 0 || (known & (1 << one)));
     one++
  :: else -> break
  od;
  one = 0; known = 0;
  assert(states_are_in_output);
  assert(output_is_in_states)
}

inline forget() { primed = 0; number = 0; reached = 0 }

active [DRIVERS] proctype driver() {
  byte primed, number, reached, tries, one;
  short known;

prime:
  atomic {
    may_go ->
    if
    :: undisturbed && state[now_state].reached == arrived -> goto end
    :: else
    fi;
    if
    :: undisturbed -> tries++; progress = tries <= MESSAGES + 1; assert(progress)
    :: else
    fi;
    primed = latest
  }
want: /* to read the next versions, under a number that the output does not have */
  if
  :: atomic {
       may_go && state[table[primed]].reached < arrived ->
       number = state[table[primed]].number + 1; reached = state[table[primed]].reached + 1;
       if :: number <= recorded -> number = recorded + 1 :: else fi;
       do
       :: reached < arrived -> reached++
       :: break
       od }
  :: atomic { may_go && state[table[primed]].reached >= arrived -> forget(); goto prime }
  :: atomic { may_go && !undisturbed -> forget(); goto prime } /* crash */
  fi;
plan: /* the first one of a state stands */
#ifndef PLAN_UNSAVED
  atomic {
    may_go ->
    if
    :: saved[table[primed]].number ->
       number = saved[table[primed]].number; reached = saved[table[primed]].reached
    :: else ->
       saved[table[primed]].number = number; saved[table[primed]].reached = reached
    fi
  }
#endif
check: /* who is late gives up */
#ifndef LATE_PLAN
  atomic { may_go -> if :: latest == primed :: else -> forget(); goto prime fi }
#endif
append: /* one commit of the output, unless its log has the number */
  atomic {
    may_go ->
    if
#ifndef APPEND_WITHOUT_NUMBER
    :: number <= recorded
#endif
#ifdef APPEND_WITHOUT_NUMBER
    :: output[number].times && output[number].times < 2 -> output[number].times++
    :: output[number].times >= 2
#endif
    :: number > recorded -> recorded = number; output[number].continues = table[primed] + 1;
       output[number].reached = reached; output[number].times = 1; check_output()
    fi
  }
commit:
  if
  :: atomic { may_go && may_write && latest == primed ->
       tokens++; state[tokens].before_it = table[primed]; state[tokens].number = number;
       state[tokens].reached = reached; latest++; table[latest] = tokens; check_output() }
  :: atomic { may_go && latest != primed -> forget(); goto prime }
  :: atomic { may_go && !undisturbed -> forget(); goto prime } /* crash, or a failing write */
  fi;
  if
  :: atomic { may_go -> saved[table[primed]].number = 0; saved[table[primed]].reached = 0; forget(); goto prime }
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
