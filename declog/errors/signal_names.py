"""What other trainers call the signals of our presets: TRL, verl, OpenRLHF, torchtune, tinker, rl-games and papers.

Each line holds names of one thing. A name that a config does not know stands for the name of its line that the config
knows, in either direction: who comes from verl and who writes for it are served alike.
"""

from __future__ import annotations

from collections.abc import Collection

_LINES = (
    # tokens
    "completion_mask mask masks attention_mask response_mask responses_mask completions_mask loss_mask action_mask "
    "actions_mask token_mask generation_mask assistant_mask assistant_masks output_mask resp_mask valid_mask",
    "logprobs logprob log_probs log_prob logp logps per_token_logps token_logprobs token_log_probs policy_logprobs "
    "policy_log_probs policy_logps pi_logprobs new_logprobs new_log_probs new_logps cur_logprobs current_logprobs "
    "current_log_probs action_log_probs action_logprobs actor_logprobs train_logprobs trainer_logprobs target_logprobs",
    "old_logprobs old_logprob old_log_probs old_log_prob old_logp old_logps old_per_token_logps old_action_log_probs "
    "old_policy_logprobs behavior_logprobs behaviour_logprobs behavior_log_probs prev_logprobs generator_logprobs "
    "sampling_logprobs sampling_log_probs sampling_logps sampling_per_token_logps sampled_logprobs sampler_logprobs "
    "rollout_logprobs rollout_log_probs rollout_logps inference_logprobs vllm_logprobs mu_logprobs",
    "ref_logprobs ref_logprob ref_log_probs ref_log_prob ref_logp ref_logps ref_per_token_logps reference_logprobs "
    "reference_log_probs reference_logps ref_policy_logprobs base_logprobs base_log_probs base_action_log_probs",
    "completion_ids completions_ids response_ids responses_ids output_ids generated_ids action_ids token_ids "
    "completion_tokens response_tokens output_tokens generated_tokens completion_token_ids response_token_ids "
    "completions_tokens action_tokens",
    "kl kls kl_div kl_divs kl_divergence approx_kl mean_kl per_token_kl token_kl kl_per_token kl_loss kl_ref ref_kl "
    "kl_to_ref kl_penalty actor/kl_loss",
    "entropy entropies entropys policy_entropy token_entropy token_entropies per_token_entropy mean_entropy "
    "actor/entropy",
    "values value vpreds vpred value_preds value_predictions critic_values baseline baselines",
    "old_values old_value old_vpreds rollout_values",
    "returns return_ ret rets discounted_returns value_targets",
    # completions
    "advantages advantage adv advs advantage_estimates gae gaes group_advantages normalized_rewards",
    "reward total_reward total_rewards reward_total reward_sum score scores sequence_score sequence_reward "
    "episode_reward episode_return outcome_reward final_reward env_reward",
    "rewards rewards_per_func reward_per_func rewards_per_function reward_components reward_funcs sub_rewards "
    "individual_rewards reward_dict rewards_dict reward_breakdown reward_extra_info",
    "completion completions completion_text completion_texts completions_text response responses response_text "
    "response_texts responses_text output outputs output_text output_texts generation generations generated_text "
    "generated_texts generated decoded decoded_text decoded_completions decoded_responses sample_text",
    "prompt prompts prompt_text prompt_texts prompts_text query queries question questions instruction instructions "
    "problem problems input_text",
    "length lengths completion_length completion_lengths completions_length response_length response_lengths "
    "responses_length output_length output_lengths output_len response_len generation_length gen_len seq_len seqlen "
    "sequence_length num_tokens n_tokens token_count num_completion_tokens num_response_tokens",
    "truncated is_truncated truncation clipped overlong is_overlong finish_reason_length hit_max_length stopped_early",
    "group group_id group_ids groups group_index group_idx uid uids prompt_id prompt_idx prompt_index problem_id "
    "question_id example_id query_id",
    # steps
    "loss total_loss policy_loss pg_loss actor_loss train_loss training_loss losses grpo_loss actor/pg_loss",
    "grad_norm grad_norms gradnorm gradient_norm total_norm global_grad_norm grad_norm_total actor/grad_norm",
    "learning_rate lr learning_rates lrs cur_lr current_lr actor/lr",
)
_LINE = {name: line.split() for line in _LINES for name in line.split()}


def same_signal(name: str, names: Collection[str]) -> str | None:
    """The known name of what ``name`` is called elsewhere; None where nobody calls it so, or nothing of it is known."""
    plain = name.lower().replace("-", "_")
    return next((other for other in (plain, *_LINE.get(plain, ())) if other != name and other in names), None)
